"""A challenge is answered by computing alone: right answers pass, and anything else is told."""

import importlib
import math
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke import records as shared
from tfbuild.in_container.smoke.records import ABSENT, Challenge, OperationAnswer, numbers
from tfbuild.measure import probe
from tfbuild.verify import challenges

DATA = Path(__file__).parents[1] / "data" / "smoke"
PROBES = tuple(challenges.SIZES)


def single(value: float) -> float:
    """Round to float32, as TensorFlow's results are."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def right(name: str, asked: Challenge) -> list[OperationAnswer]:
    return [
        OperationAnswer(operation, tuple(map(single, row.result(asked))))
        for operation, row in challenges.OPERATIONS[name].items()
    ]


def test_both_sides_draw_these_numbers_on_every_python() -> None:
    assert numbers(7, 4) == [-0.35235595703125, 0.895721435546875, -0.69830322265625, -0.210357666015625]
    assert all(single(value) == value and -1 <= value < 1 for value in numbers(random.randrange(2**48), 1000))


def test_a_product_by_hand() -> None:
    a, b, c, d, e, f = numbers(3, 6)
    # [1, 2] times [2, 2].
    assert challenges.product(Challenge(3, (1, 2, 2))) == pytest.approx([a * c + b * e, a * d + b * f])


def test_the_operations_on_a_matrix_by_their_definitions() -> None:
    asked = Challenge(5, (3, 5))
    x = [numbers(5, 15)[row * 5 : row * 5 + 5] for row in range(3)]
    flat = [value for row in x for value in row]
    results = {name: row.result(asked) for name, row in challenges.OPERATIONS["numerics"].items()}
    assert results["product"] == pytest.approx([sum(a * b for a, b in zip(i, j, strict=True)) for i in x for j in x])
    assert results["exp"] == pytest.approx([math.e ** (4 * value) for value in flat])
    softmax = results["softmax"]
    assert [sum(softmax[row * 5 : row * 5 + 5]) for row in range(3)] == pytest.approx([1, 1, 1])
    assert softmax[1] / softmax[0] == pytest.approx(math.e ** (x[0][1] - x[0][0]))
    # The third row and the fifth column have no partner.
    windows = [[x[0][0], x[0][1], x[1][0], x[1][1]], [x[0][2], x[0][3], x[1][2], x[1][3]]]
    assert results["average"] == pytest.approx([sum(window) / 4 for window in windows])
    assert results["maximum"] == [max(window) for window in windows]
    step = 1e-6
    slopes = [((v + step) * math.tanh(v + step) - (v - step) * math.tanh(v - step)) / (2 * step) for v in flat]
    assert results["gradient"] == pytest.approx(slopes, abs=1e-8)


def test_a_convolution_by_its_definition() -> None:
    count, height, width, inputs, outputs = sizes = (2, 4, 3, 2, 3)
    x = numbers(11, count * height * width * inputs + 9 * inputs * outputs)

    def image(n: int, i: int, j: int, c: int) -> float:
        inside = 0 <= i < height and 0 <= j < width
        return x[((n * height + i) * width + j) * inputs + c] if inside else 0.0

    def kernel(i: int, j: int, c: int, k: int) -> float:
        return x[count * height * width * inputs + ((i * 3 + j) * inputs + c) * outputs + k] / 16

    everything = [
        max(
            0.0,
            sum(
                image(n, i + di - 1, j + dj - 1, c) * kernel(di, dj, c, k)
                for di in range(3)
                for dj in range(3)
                for c in range(inputs)
            ),
        )
        for n in range(count)
        for i in range(height)
        for j in range(width)
        for k in range(outputs)
    ]
    asked = Challenge(11, sizes, tuple(range(len(everything))))
    assert challenges.convolution(asked) == pytest.approx(everything)
    assert any(everything)


@pytest.mark.parametrize("name", PROBES)
def test_right_answers_in_float32_pass(name: str) -> None:
    for _ in range(3):
        asked = challenges.draw(name)
        answers = right(name, asked)
        assert challenges.error_in(name, asked, answers) == ""
        assert sum(len(answer.values) for answer in answers) < probe.MOST_ITEMS


@pytest.mark.parametrize("name", PROBES)
def test_every_single_wrong_answer_is_told(name: str) -> None:
    asked = challenges.draw(name)
    answers = right(name, asked)
    for index, answer in enumerate(answers):
        largest = max(range(len(answer.values)), key=lambda position: abs(answer.values[position]))
        values = tuple(value * 1.01 if n == largest else value for n, value in enumerate(answer.values))
        forged = [*answers[:index], replace(answer, values=values), *answers[index + 1 :]]
        assert f"{answer.name} is off by 0.01 (limit" in challenges.error_in(name, asked, forged)
        short = [*answers[:index], replace(answer, values=values[1:]), *answers[index + 1 :]]
        assert f"numbers in place of {len(values)}" in challenges.error_in(name, asked, short)


@pytest.mark.parametrize("name", [name for name in PROBES if challenges.OPERATIONS[name]])
def test_the_answers_of_another_run_are_wrong(name: str) -> None:
    first, second = challenges.draw(name), challenges.draw(name)
    assert first != second
    assert "its answer to this run's challenge is wrong" in challenges.error_in(name, second, right(name, first))
    assert challenges.error_in(name, first, []) == "it did not answer this run's challenge"


def test_each_result_of_exp_counts_however_small() -> None:
    asked = challenges.draw("numerics")
    answers = {answer.name: answer for answer in right("numerics", asked)}

    def forged(name: str, factor: float) -> str:
        values = list(answers[name].values)
        index = min(range(len(values)), key=lambda position: abs(values[position]))
        values[index] *= factor
        return challenges.error_in(
            "numerics", asked, [*({**answers, name: replace(answers[name], values=tuple(values))}.values())]
        )

    assert forged("exp", 1.01).startswith(
        "its answer to this run's challenge is wrong: exp is off by 0.01 (limit 2e-06"
    )
    assert forged("average", 1 + 1e-9) == "", "float32 cannot tell a sum near zero more closely"


def test_a_gpu_may_be_off_by_more_than_a_cpu() -> None:
    limits = {name: challenges.OPERATIONS[name]["convolution"].limit for name in ("onednn", "cuda")}
    assert limits == {"onednn": 1e-5, "cuda": judge.MOST_GPU_ERROR}


def test_an_answer_that_is_not_a_number_at_all_is_wrong() -> None:
    asked = challenges.draw("start")
    (answer,) = right("start", asked)
    for value in (math.nan, math.inf, -math.inf):
        forged = replace(answer, values=(value, *answer.values[1:]))
        assert "product is off by" in challenges.error_in("start", asked, [forged])


def test_results_that_are_all_zero_can_be_compared() -> None:
    asked = Challenge(0, (65,), (0, 0))
    assert challenges.error_in("faults", asked, [OperationAnswer("scale", (0.0, 0.0))]) == ""
    assert "scale is off by 0.5" in challenges.error_in("faults", asked, [OperationAnswer("scale", (0.0, 0.5))])


def test_any_place_of_the_result_may_be_asked_for() -> None:
    # An import statement would have mypy read what only exists inside images.
    probes = importlib.import_module("tfbuild.in_container.smoke.probes")
    for name in PROBES:
        sizes, length = challenges.SIZES[name](random.Random(1))
        if name == "faults":
            assert length == probes.TENSOR_MIB * 2**20 // 4, "the float32 numbers of the tensor in the probe"
        elif name in ("onednn", "cuda"):
            count, height, width, _, outputs = sizes
            assert length == count * height * width * outputs
        else:
            assert length == 0, "all of it is the answer"
        assert len(challenges.draw(name).positions) == (challenges.POSITIONS if length else 0)


def test_convolutions_have_channels_for_which_onednn_has_its_best_code() -> None:
    drawn = [challenges.draw("onednn").sizes for _ in range(50)]
    assert all(inputs % 16 == 0 and outputs % 16 == 0 for *_, inputs, outputs in drawn)
    assert len({sizes[3:] for sizes in drawn}) > 1
    assert {sizes[0] for sizes in drawn} == {4}


def test_what_is_no_number_has_the_probe_s_reason() -> None:
    asked = challenges.draw("start")
    note = "something that is not a number"
    assert challenges.error_in("start", asked, [OperationAnswer("product", (), note)]).endswith(note)


def test_the_host_sends_what_the_probe_reads() -> None:
    asked = challenges.draw("onednn")
    line = probe.question(asked)
    assert line.endswith(b"\n")
    assert shared.read_challenge(line.decode()) == asked
    assert shared.read_challenge("") is None


@pytest.mark.parametrize("release", ["2.0.1", "2.14.0", "2.21.0"])
def test_onednn_s_lines_answer_for_their_sizes_alone(release: str) -> None:
    """Recorded with images of [4, 16, 16, 32] and 32 channels out of them."""
    text = (DATA / f"onednn-{release}.txt").read_text()
    sizes = (4, 16, 16, 32, 32)
    assert challenges.is_traced(text, Challenge(0, sizes))
    for index in range(len(sizes)):
        other = tuple(size + 1 if n == index else size for n, size in enumerate(sizes))
        assert not challenges.is_traced(text, Challenge(0, other))


def test_a_line_about_another_operation_is_no_answer() -> None:
    line = "onednn_verbose,v1,primitive,exec,cpu,{},x,mb4_ic32oc32_ih16oh16kh3sh1dh0ph1_iw16ow16kw3sw1dw0pw1,0.1\n"
    asked = Challenge(0, (4, 16, 16, 32, 32))
    assert challenges.is_traced(line.format("convolution"), asked)
    assert not challenges.is_traced(line.format("matmul"), asked)


@pytest.mark.parametrize("name", ["quantized", "compiled"])
def test_only_operations_that_builds_may_lack_can_be_left_out_and_only_by_saying_so(name: str) -> None:
    asked = challenges.draw("numerics")
    answers = right("numerics", asked)
    absent = [replace(row, values=(), note=ABSENT) if row.name == name else row for row in answers]
    assert challenges.error_in("numerics", asked, absent) == ""
    silent = [replace(row, values=()) if row.name == name else row for row in answers]
    assert f"{name}: 0 numbers in place of" in challenges.error_in("numerics", asked, silent)
    other = [replace(row, values=(), note=ABSENT) if row.name == "exp" else row for row in answers]
    assert f"exp: {ABSENT}" in challenges.error_in("numerics", asked, other)


def test_the_product_of_8_bit_numbers_is_exact() -> None:
    asked = challenges.draw("numerics")
    answers = right("numerics", asked)
    off = [
        replace(row, values=(row.values[0] + 1, *row.values[1:])) if row.name == "quantized" else row for row in answers
    ]
    assert "quantized is off by" in challenges.error_in("numerics", asked, off)
