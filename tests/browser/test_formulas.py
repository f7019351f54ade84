"""LaTeX in replies: which texts are formulas, and what they become."""

from __future__ import annotations

import random

import pytest

from tests.browser.conftest import models_saying
from tests.browser.test_chat_page import ask, last_reply, wait_done
from tests.support.loopback import serving_models

pytestmark = pytest.mark.browser

FORMULAS = {
    "$E=mc^2$": ["E=mc^2"],
    "so $x$, $y_1$ and ($z$).": ["x", "y_1", "z"],
    r"\(a_b\) and \[c*d*e\]": ["a_b", "c*d*e"],
    "$$\nx\n+ 1\n$$": ["x\n+ 1"],
    "Text:\n\\[\n- a\n\\].\nMore.": ["- a\n."],
    "$$a$$ in a line": ["a"],
    "- item $$a$$\n- \\[b\\]": ["a", "b"],
    "| $a$ | b |\n|--|--|\n| \\(c\\) | d |": ["a", "c"],
    "**bold $a*b$**": ["a*b"],
    r"$\text{cost} = 5$ and $5$": [r"\text{cost} = 5", "5"],
    r"$\$5$": [r"\$5"],
}
TEXTS = [
    *("$5 and $10", "$5-$10", "from $5 to 10$ each", "US$5, A$6", "$", "$$", "$ x $", "it is $x"),
    *("`$a$`", "```\n$a$\n```", r"\$a$", "$HOME/$USER", "$5 (or 4) and US$", r"\(a", r"\[a", "$$a"),
    *("$a\nb$", "${a}${b}", "1$ and 2$", "Costs $1,000 more than $900."),
]
LATEX = r"""
\frac \sqrt \left( \right) \begin{matrix} \end{matrix} \text{ \color{red} \label{box} \hline
\href{javascript:alert(1)}{x} \url{http://a.b} \includegraphics{http://a.b/c.png} \class{x}
\id{box} \style{color:red} \data{a=b} \tag{1} \ref{box} \rule{999em}{999em} \def\a{\a\a}\a
\cancel{x} \boxed{x} \pmb{x} \kern900em \raisebox{99em}{x} \sideset{a}{b}\sum { } _ ^ & \\ x 1 +
<script> \overbrace{a} \vec{x} \mathbb{R} \xrightarrow{a} # %
"""
PIECES = LATEX.split()
RENDERED = """async (texts) => {
  const { renderMarkdown } = await import("/ui/markdown.js");
  const { loadMath } = await import("/ui/math.js");
  await loadMath();
  return texts.map((text) => {
    const root = document.createElement("div");
    root.append(renderMarkdown(text));
    const inside = [...root.querySelectorAll(".math *")];
    return { text: root.textContent, formulas: root.querySelectorAll(".math math").length,
      sources: root.querySelectorAll(".math").length,
      spaces: [...new Set(inside.map((each) => each.namespaceURI))],
      attributes: [...new Set(inside.flatMap((each) => each.getAttributeNames()))] };
  });
}"""


@pytest.fixture(scope="module")
def page(chromium):
    with serving_models(models_saying("x")) as running:
        page = chromium.new_page()
        complaints: list[str] = []
        page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        page.goto(running.url)
        yield page
        page.close()
        assert complaints == []


def test_formulas_are_told_from_text(page) -> None:
    sources = """async (texts) => {
        const { renderMarkdown } = await import("/ui/markdown.js");
        const { loadMath } = await import("/ui/math.js");
        const temml = await loadMath();
        const render = temml.__renderToMathMLTree;
        return texts.map((text) => {
            const asked = [];
            temml.__renderToMathMLTree = (latex, how) => {
                asked.push(latex.trim());
                return render(latex, how);
            };
            renderMarkdown(text);
            temml.__renderToMathMLTree = render;
            return asked;
        });
    }"""
    assert page.evaluate(sources, list(FORMULAS)) == list(FORMULAS.values())
    assert page.evaluate(sources, TEXTS) == [[] for _ in TEXTS]


def test_every_formula_is_mathml(page) -> None:
    for text, found in zip(FORMULAS, page.evaluate(RENDERED, list(FORMULAS)), strict=True):
        assert found["formulas"] == len(FORMULAS[text]), text
        assert found["spaces"] == ["http://www.w3.org/1998/Math/MathML"]


def test_no_formula_can_do_more_than_show(page) -> None:
    """No names, links or pictures; what is wrong stays as it was written."""
    rng = random.Random(5)
    texts = ["$$" + " ".join(rng.choices(PIECES, k=rng.randint(1, 12))) + "$$" for _ in range(400)]
    texts += [f"$${each}$$" for each in PIECES]
    texts += ["$" + "{" * 5000 + "}" * 5000 + "$", "$" + "x^{" * 3000 + "}" * 3000 + "$"]
    texts += ["$$" + r"\begin{matrix}" + "a&" * 4000 + r"\end{matrix}$$"]
    harmless = {"class", "style", "display", "displaystyle", "scriptlevel", "stretchy", "width"}
    seen: set[str] = set()
    num_shown = 0
    for text, found in zip(texts, page.evaluate(RENDERED, texts), strict=True):
        assert found["spaces"] in ([], ["http://www.w3.org/1998/Math/MathML"]), text
        assert found["formulas"] or found["text"] == text.strip(), text
        seen |= set(found["attributes"])
        num_shown += found["formulas"]
    assert num_shown >= 20
    assert harmless <= seen
    assert not seen & {"id", "href", "src", "name"}
    assert not [each for each in seen if each.startswith(("on", "data", "xlink"))]


def test_a_formula_of_a_model_is_shown_and_the_library_comes_only_then(saying, new_page) -> None:
    running = saying("It costs $5 and $10.", "Euler: $e^{i\\pi}=-1$ and\n\n$$\\frac{a}{b}$$")
    page = new_page(running.url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    ask(page, "price?")
    wait_done(page)
    assert last_reply(page).locator(".reply").inner_text() == "It costs $5 and $10."
    assert not any("temml" in url for url in asked)
    page.select_option("#model", "model-1")
    ask(page, "formula?")
    wait_done(page)
    last_reply(page).locator(".math.display mfrac").wait_for(state="attached")
    assert last_reply(page).locator("math").count() == 2
    assert sum(url.endswith("/ui/temml.js") for url in asked) == 1
    tall = "(each) => each.getBoundingClientRect().height"
    assert last_reply(page).locator(".math.display").evaluate(tall) > 20
