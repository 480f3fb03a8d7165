"""What the nightly soak runs are command lines that tfbuild takes."""

import os
import random
import signal
from itertools import islice

from tests.rows import each
from tests.with_engine.soak import FAULTS, IDS, TARGETS, TRIALS, Trial, catches, draws
from tfbuild.cli import VERBS, command_line
from tfbuild.util.process import interruptible


@each("trial", TRIALS)
def test_a_verb_of_the_soak_is_one(trial: Trial) -> None:
    words = trial.words.format(target=TARGETS[0], id=IDS[0], image=f"tfbuild:{IDS[0]}").split()
    (call,) = command_line.calls(words, VERBS)
    assert call.settled()


@each("seed", range(5))
def test_an_hours_draws_strike_each_important_verb_with_most_faults(seed: int) -> None:
    drawn = {(trial.verb, name) for trial, name in islice(draws(random.Random(seed)), 100)}
    for verb in ("build", "verify", "push", "pull"):
        assert sum((verb, name) in drawn for name in FAULTS) > len(FAULTS) / 2


def test_a_verb_is_struck_by_a_signal_once_it_handles_signals() -> None:
    before = catches(os.getpid(), signal.SIGTERM)
    with interruptible():
        assert catches(os.getpid(), signal.SIGTERM)
    assert catches(os.getpid(), signal.SIGTERM) == before
    assert not catches(os.getpid(), signal.SIGUSR2)
    assert not catches(2**22 + 1, signal.SIGTERM)
