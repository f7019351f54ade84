"""A model over two ranks as users have it, and ranks that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from time import sleep

import pytest
import torch

from blazr import LLM, SamplingParams
from blazr.core.errors import ConfigError, EngineError, RequestError
from blazr.engine.ranks import collectives
from blazr.engine.ranks import processes as module
from blazr.engine.ranks.collectives import ProcessRanks
from blazr.llm.options import LoadOptions
from blazr.nn.layers.ranks import Rank
from tests.support.examples import FEED_FORWARD_EXAMPLES
from tests.support.networks import Lab
from tests.support.ranks import (
    ROOT,
    build,
    config_of,
    even_mixer,
    fail,
    network,
    part_of,
    two_ranks,
)

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PATIENCE_S = 60.0
PROMPTS = ["Once upon a time", "The", "A very long story about a dog who"]


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ranks_of(pid):
    """The processes that a first rank has started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(each) for path in children for each in path.read_text(encoding="utf-8").split()]
    return [each for each in found if b"ranks.worker" in Path(f"/proc/{each}/cmdline").read_bytes()]


def built(processes):
    config = config_of([even_mixer("gqa"), even_mixer("mamba2")], FEED_FORWARD_EXAMPLES["moe"])
    processes.tell(build, config, 0)
    return Lab(part_of(network(config, 0), processes.ranks), processes=processes)


def test_the_same_replies():
    """Of prompts, and their vectors; layers in stages give all of it to the bit."""
    ids = list(range(1, 100))
    found = []
    for how in ({}, {"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2, "spec": "ngram"}):
        with LLM("nano", device="cpu", **how) as llm:
            (scored,) = llm.generate(PROMPTS[2], SamplingParams(max_tokens=1, prompt_logprobs=0))
            assert len(scored.prompt_logprobs) > 5
            tokens = [each.token_ids for each in llm.generate(PROMPTS, GREEDY)]
            vectors = torch.tensor([each.embedding for each in llm.embed(PROMPTS)])
            found.append((tokens, vectors, llm.logits(ids)))
            assert llm.core.info.num_parameters == 2_750_208
            if how:
                check_refusals(llm)
    (tokens, vectors, logits), in_stages, in_parts = found
    assert tokens == in_stages[0] == in_parts[0]
    assert torch.equal(vectors, in_stages[1])
    assert torch.equal(logits, in_stages[2])
    assert (vectors - in_parts[1]).abs().max() < 1e-5
    assert (logits - in_parts[2]).abs().max() < 1e-5 * logits.abs().max()
    assert not ranks_of(os.getpid())


def check_refusals(llm):
    """Weights and adapters cannot be put in while it runs."""
    with pytest.raises(RequestError, match="not replaced"):
        llm.core.bundle.with_weights("nano")
    with pytest.raises(RequestError, match="several ranks"):
        llm.core.engine.load_adapter({}, fingerprint="")


def test_what_does_not_work_yet_is_refused():
    """Before anything is loaded."""
    for asked in (
        {"adapter": "a=b"},
        {"cache_dir": "x"},
        {"spec": "ngram,mtp"},
        {"tp": 65},
        {"pp": 2},
        {"pp": 0},
    ):
        with pytest.raises(ConfigError):
            LoadOptions("nano", **{"tp": 2, **asked})


def test_a_model_that_cannot_be_cut_says_how_it_can():
    """Before any process is started."""
    with pytest.raises(ConfigError, match="cannot be cut for 7 ranks") as refusal:
        LLM("nano", tp=7, device="cpu")
    assert refusal.value.hint.startswith("--tp 2")


@pytest.mark.parametrize("how", ["killed", pytest.param("fails", marks=pytest.mark.slow)])
def test_a_rank_that_ends(how):
    """What runs ends with an error that says which rank it was, and so does what comes."""
    with two_ranks() as processes:
        (pid,) = ranks_of(os.getpid())
        lab = built(processes)
        first = lab.ask(range(1, 20), max_tokens=500, ignore_eos=True)
        for _ in range(5):
            lab.step()
        if how == "killed":
            os.kill(pid, signal.SIGKILL)
        else:
            processes.tell(fail)
        lab.run()
        assert "rank 1 has ended" in lab.errors[first, 0]
        second = lab.ask([1, 2, 3])
        lab.run()
        assert "rank 1 has ended" in lab.errors[second, 0]
        assert ("signal 9" if how == "killed" else "exit code 1") in processes.failure
        with pytest.raises(EngineError, match="rank 1"):
            processes.check()
    assert not is_alive(pid)


def test_the_first_rank_alone_is_told_to_stop():
    """Systemd tells all processes of a service, and the first one finishes what it has begun."""
    with two_ranks() as processes:
        (pid,) = ranks_of(os.getpid())
        lab = built(processes)
        for sign in (signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, sign)
        asked = lab.ask([1, 2, 3], max_tokens=5, ignore_eos=True)
        lab.run()
        assert lab.errors == {(asked, 0): None}
        assert len(lab.tokens[asked, 0]) == 5


def test_a_step_that_fails_on_the_first_rank():
    """The others would wait for what does not come, or compute something else."""
    with two_ranks() as processes:
        lab = built(processes)
        lab.runner.model.norm.forward = None
        asked = lab.ask([1, 2, 3])
        lab.run()
        assert "a step failed on the first rank" in lab.errors[asked, 0]


SILENT = """
import sys
from pathlib import Path
from blazr.engine.ranks.collectives import ProcessRanks
from blazr.nn.layers.ranks import Rank

ranks = ProcessRanks(Rank(1, 2), Path(sys.argv[1]), "cpu")
sys.stdin.read()
"""


def test_what_waits_ends_when_the_ranks_are_given_up(tmp_path):
    """Also where gloo does not notice that one has gone."""
    with subprocess.Popen(
        [sys.executable, "-c", SILENT, str(tmp_path)], stdin=subprocess.PIPE, cwd=ROOT
    ) as process:
        ranks = ProcessRanks(Rank(0, 2), tmp_path, "cpu")
        threading.Timer(0.1, ranks.abort).start()
        with pytest.raises(RuntimeError, match="timed out"):
            ranks.gather(torch.zeros(1))
        process.kill()


LATE = """
import sys
from pathlib import Path
import torch
from blazr.engine.ranks.collectives import ProcessRanks
from blazr.nn.layers.ranks import Rank

ranks = ProcessRanks(Rank(1, 2), Path(sys.argv[1]), "cpu")
sys.stdin.readline()
ranks.send(torch.ones(1), 0)
sys.stdin.read()
"""


def test_a_stage_waits_for_what_comes_late(tmp_path, monkeypatch):
    """Longer than until it looks whether the ranks have been given up; then it waits no more."""
    monkeypatch.setattr(collectives, "_LOOK", timedelta(milliseconds=10))
    with subprocess.Popen(
        [sys.executable, "-c", LATE, str(tmp_path)], stdin=subprocess.PIPE, cwd=ROOT, bufsize=0
    ) as process:
        ranks = ProcessRanks(Rank(0, 2), tmp_path, "cpu")
        threading.Timer(0.1, process.stdin.write, [b"\n"]).start()
        assert ranks.receive(torch.zeros(1), 1) == 1
        threading.Timer(0.1, ranks.abort).start()
        with pytest.raises(EngineError, match="given up"):
            ranks.receive(torch.zeros(1), 1)
        process.kill()


def test_a_rank_that_cannot_start(monkeypatch):
    """It is said, with the exit code."""
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(EngineError, match=r"rank 1 has ended .*exit code 1"), two_ranks():
        pass


HANGING = """
import sys
from pathlib import Path

number, *_, folder = sys.argv[1:]
{line}
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "rank 1 does not start"),
        ("Path(folder, f'{number}.started').touch()", "do not find each other"),
        ("Path(folder, f'{number}.started').touch(); sys.exit(3)", "rank 1 has ended .*code 3"),
    ],
)
def test_a_rank_that_hangs_while_it_starts(line, message, tmp_path, monkeypatch):
    program = tmp_path / "hanging.py"
    program.write_text(HANGING.format(line=line), encoding="utf-8")
    start = module.start_child
    monkeypatch.setattr(module, "start_child", lambda _, *words, **__: start(program, *words))
    monkeypatch.setattr(module, "_START_S", 60.0 if line else 0.1)
    monkeypatch.setattr(collectives, "_MEETING", timedelta(seconds=1))
    with pytest.raises(EngineError, match=message), two_ranks():
        pass


COMMAND = [sys.executable, "-X", "faulthandler", "-m", "blazr"]
LONG = ["--tp", "2", "--cpu", "-p", "Once", "--max-tokens", "100000", "--temperature", "0"]


def started(*arguments):
    """A command that runs, and its ranks."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    process.stdout.read(1)  # it has begun to reply, or ended
    return process, ranks_of(process.pid)


def test_a_command_ends_with_its_ranks():
    """One killed: an error, and a code that is not zero."""
    process, (pid,) = started("generate", "nano", *LONG)
    os.kill(pid, signal.SIGKILL)
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # where its threads are is what can be found out now
        pytest.fail(process.communicate()[1].decode())
    assert process.returncode == 1
    assert b"rank 1 has ended" in errors


@pytest.mark.slow
def test_ranks_end_with_the_first():
    """However that ended."""
    process, (pid,) = started("generate", "nano", *LONG)
    process.kill()
    process.communicate()
    while is_alive(pid):
        sleep(0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_leaves_the_ranks_to_its_parent():
    with two_ranks() as processes:
        fork = os.fork()
        if not fork:
            signal.alarm(int(PATIENCE_S))  # it may wait for what only its parent can
            processes.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
        assert ranks_of(os.getpid())
        assert processes._folder.exists()
        processes.check()


def test_a_server_ends_with_its_ranks(tmp_path):
    """Its exit code says so, and its last words say why."""
    path = tmp_path / "socket"
    process = subprocess.Popen(
        [*COMMAND, "serve", "nano", "--tp", "2", "--cpu", "--uds", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stderr is not None
    while b"serves nano" not in process.stderr.readline():
        assert process.poll() is None
    (pid,) = ranks_of(process.pid)
    os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert b"rank 1 has ended" in errors
