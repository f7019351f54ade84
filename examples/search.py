"""Find what answers a question: by vectors of an encoder, then by the scores of a cross-encoder.

Run: python examples/search.py BAAI/bge-small-en-v1.5 BAAI/bge-reranker-base
It needs: pip install 'blazr[embed]'
"""

import sys

import numpy as np

from blazr import LLM

QUESTION = "Where did the cat sleep?"
DOCUMENTS = ["The cat slept on the mat.", "A dog barked all night.", "The sun rose at six."]

vectors, ranks = sys.argv[1:]

with LLM(vectors) as llm:
    found = llm.embed([QUESTION, *DOCUMENTS], normalize=True)
    question, *documents = np.array([each.embedding for each in found])
cosines = np.stack(documents) @ question
nearest = [DOCUMENTS[place] for place in np.argsort(-cosines)[:2]]
print(f"{len(question)} numbers each; the nearest are {nearest}")

with LLM(ranks) as llm:
    scores = [each.score for each in llm.score(QUESTION, nearest)]
for score, document in sorted(zip(scores, nearest, strict=True), reverse=True):
    print(f"{score:.3f} {document}")
