"""Online methods: hand values, deterministic bounds on hostile streams, vectorisation, and resuming bit for bit."""

import dataclasses
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal

import credibly
from credibly.conformal.aps import APS
from credibly.conformal.online.aci import ACI
from credibly.conformal.online.dtaci import DtACI
from credibly.conformal.online.pid import ConformalPID
from credibly.conformal.online.quantile_tracker import QuantileTracker
from credibly.conformal.online.score_window import ScoreWindow
from credibly.conformal.ranks import threshold
from credibly.conformal.residual import AbsoluteResidual
from credibly.core.errors import NotFiniteError, ShapeError

METHODS = {
    "aci": ACI(coverage=0.8, step_size=0.05),
    "aci_window": ACI(coverage=0.8, step_size=0.05, window=15),
    "dtaci": DtACI(coverage=0.8, step_sizes=(0.01, 0.1, 0.3), horizon=50, window=40),
    "tracker": QuantileTracker(coverage=0.8, step_size=0.1),
    "tracker_decay": QuantileTracker(coverage=0.8, step_size=0.5, decay=0.6),
    "pid": ConformalPID(coverage=0.8, step_size=0.1, gain=0.5, saturation=0.5),
}
STEPS = 120


@pytest.fixture(params=METHODS)
def method(request):
    return METHODS[request.param]


def streams(kind, steps=STEPS, series=4):
    """Scores in [0, 1] whose law moves, (steps, series)."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.rand(steps, series, generator=generator, dtype=torch.float64)
    time = torch.linspace(0, 1, steps, dtype=torch.float64).unsqueeze(-1)
    return {
        "exchangeable": noise,
        "growing": noise * time,
        "shrinking": noise * (1 - time),
        "jumps": noise * ((time * 8).floor() % 2),
        "constant": torch.full_like(noise, 0.5),
        "zeros": torch.zeros_like(noise),
        "increasing": time.expand(steps, series).contiguous(),
    }[kind]


KINDS = ["exchangeable", "growing", "shrinking", "jumps", "constant", "zeros", "increasing"]


def adversary(limits):
    """Above the threshold wherever a score in [0, 1] can be, else anything."""
    return torch.where(limits < 1, (limits.clamp(min=0.0) + 1) / 2, 0.5)


def contrarian(limits, step):
    """Misses for thirty steps, then hits for thirty, as far as scores in [0, 1] can."""
    return adversary(limits) if step // 30 % 2 == 0 else torch.zeros_like(limits)


def errors_of(method, choose, start):
    """Run against scores chosen with the threshold in sight: the misses of every step, (steps, *shape)."""
    state, missed = method.init(start), []
    for step in range(STEPS):
        limits = method.threshold(state)
        scores = choose(limits, step)
        missed.append(scores > limits)
        state = method.update(state, scores)
    return torch.stack(missed)


def running_gap(missed, target):
    """Whether the mean error is away from its target, at every step, (steps, *shape)."""
    count = torch.arange(1, len(missed) + 1, dtype=torch.float64).reshape(-1, *[1] * (missed.dim() - 1))
    return (missed.double().cumsum(0) / count - target).abs(), count


HOSTILE = {
    "adversary": lambda limits, step: adversary(limits),
    "contrarian": contrarian,
    "infinite": lambda limits, step: torch.full_like(limits, math.inf),
    "just_inside": lambda limits, step: limits.clamp(0, 1),
} | {kind: lambda limits, step, kind=kind: streams(kind, series=1)[step].expand(limits.shape) for kind in KINDS}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("window", [None, 10])
def test_aci_stays_within_its_bound_at_every_step(hostile, window):
    coverage, step = torch.tensor([0.5, 0.9, 0.99]).unsqueeze(-1), torch.tensor([0.01, 0.1, 1.5])
    method = ACI(coverage=coverage, step_size=step, window=window)
    target = (1 - coverage.double()).round(decimals=6)
    start = torch.rand(3, 3, 5, generator=torch.Generator().manual_seed(0))  # one series for each pair of options
    gap, count = running_gap(errors_of(method, HOSTILE[hostile], start), target)
    bound = (torch.maximum(target, 1 - target) + step.double()) / (count * step.double())
    assert bool((gap <= bound + 1e-9).all())


@pytest.mark.parametrize("hostile", [name for name in HOSTILE if name != "infinite"])
def test_the_tracker_stays_within_its_bound_at_every_step(hostile):
    coverage, step = torch.tensor([0.5, 0.9]).unsqueeze(-1), torch.tensor([0.02, 0.3, 2.0])
    for decay in (0.0, 0.6):
        method = QuantileTracker(coverage=coverage, step_size=step, decay=decay)
        gap, count = running_gap(
            errors_of(method, HOSTILE[hostile], torch.empty(0)), (1 - coverage.double()).round(decimals=6)
        )
        last = step.double() * count**-decay
        assert bool((gap <= (1 + step.double()) / (count * last) + 1e-9).all())


@pytest.mark.parametrize("hostile", HOSTILE)
def test_pid_stays_within_its_bound_whatever_the_forecasts(hostile):
    method = ConformalPID(coverage=torch.tensor([0.5, 0.9]), step_size=0.05, gain=0.3, saturation=1.0)
    state, missed = method.init(), []
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        state = method.with_forecast(state, 5 * torch.randn(2, generator=generator))
        limits = method.threshold(state)
        scores = HOSTILE[hostile](limits, step)
        scores = torch.where(scores.isneginf(), -5.0, scores)
        missed.append(scores > limits)
        state = method.update(state, scores)
    gap, count = running_gap(torch.stack(missed), torch.tensor([0.5, 0.1]))
    bound = math.pi / 2 / count.log() + 1 / count
    assert bool((gap <= bound + 1e-9)[3:].all())


@pytest.mark.parametrize("kind", KINDS)
def test_every_expert_of_dtaci_stays_within_the_bound(kind):
    steps = torch.tensor([0.01, 0.1, 0.5], dtype=torch.float64)
    method = DtACI(coverage=0.8, step_sizes=tuple(steps.tolist()), horizon=100)
    scores = streams(kind)
    state = method.init(torch.empty(4, 0))
    for row in scores:
        state = method.update(state, row)
    # the sum of (0.2 - err) is the way that the level has gone, divided by the step size
    gap = ((state.miscoverage - 0.2) / steps).abs() / len(scores)
    assert bool((gap <= (0.8 + steps) / (len(scores) * steps) + 1e-9).all())
    assert torch.allclose(state.weights.sum(-1), torch.ones(4, dtype=torch.float64))
    assert bool((state.weights >= 1 / 200 / 3 * 0.99).all())  # what is shared out


def test_drift_breaks_split_conformal_and_not_aci():
    # the scale of the noise grows threefold: 5 binomial standard errors, failure rate 6e-7
    generator = torch.Generator().manual_seed(2)
    scale = torch.linspace(1, 3, 1400, dtype=torch.float64)
    scores = (torch.randn(1400, generator=generator, dtype=torch.float64) * scale).abs()
    fixed = threshold(scores[:500].sort().values, 0.9)
    error = 5 * math.sqrt(0.09 / 900)
    assert (scores[500:] <= fixed).double().mean().item() < 0.9 - error
    for method in (ACI(step_size=0.02), DtACI(), QuantileTracker(step_size=0.1)):
        run = method.run(scores[500:], method.init(scores[:500]))
        assert abs(run.coverage.item() - 0.9) < error
        assert run.rolling_coverage(250).min().item() > 0.8


def test_aci_by_hand():
    # scores 1..4 known; coverage .5, gamma .25. Levels by hand, in exact binary fractions
    method = ACI(coverage=0.5, step_size=0.25)
    state = method.init([1.0, 2.0, 3.0, 4.0])
    expected = [
        (0.5, 3.0, 10.0),  # rank ceil(5 * .5) = 3; a miss
        (0.375, 4.0, 0.0),  # of 1 2 3 4 10: ceil(6 * .625) = 4; a hit
        (0.5, 3.0, 3.0),  # of 0 1 2 3 4 10: ceil(7 * .5) = 4, which is 3; a tie is a hit
        (0.625, 2.0, 9.0),  # of 0 1 2 3 3 4 10: ceil(8 * .375) = 3, which is 2; a miss
    ]
    for level, limit, score in expected:
        assert state.miscoverage.item() == level
        assert method.threshold(state).item() == limit
        state = method.update(state, score)
    assert state.miscoverage.item() == 0.5
    assert state.scores.recent.tolist() == [1.0, 2.0, 3.0, 4.0, 10.0, 0.0, 3.0, 9.0]
    assert state.scores.ordered.tolist() == [0.0, 1.0, 2.0, 3.0, 3.0, 4.0, 9.0, 10.0]


def test_aci_is_not_clipped():
    method = ACI(coverage=0.9, step_size=0.5)
    state = method.init([1.0] * 30)
    levels = []
    for score in (2.0, 2.0, 2.0, 2.0, 0.0):
        levels.append((round(state.miscoverage.item(), 9), method.threshold(state).item()))
        state = method.update(state, score)
    assert levels == [(0.1, 1.0), (-0.35, math.inf), (-0.3, math.inf), (-0.25, math.inf), (-0.2, math.inf)]
    full = dataclasses.replace(state, miscoverage=torch.tensor(1.0, dtype=torch.float64))
    assert method.threshold(full).item() == -math.inf
    assert method.threshold(dataclasses.replace(state, miscoverage=full.miscoverage * 7)).item() == -math.inf


def test_aci_needs_no_scores_to_begin_with():
    run = ACI(coverage=0.5, step_size=0.1).run([5.0, 4.0, 3.0])
    assert run.thresholds.tolist() == [math.inf, 5.0, 5.0]  # ceil(2 * .45) = 1 of 1, ceil(3 * .4) = 2 of 4 and 5
    assert run.missed.tolist() == [False, False, False]


def test_tracker_by_hand():
    method = QuantileTracker(coverage=0.75, step_size=1.0)
    run = method.run([3.0, 0.5, 0.25, 4.0])
    assert run.thresholds.tolist() == [0.0, 0.75, 0.5, 0.25]
    assert run.missed.tolist() == [True, False, False, True]
    assert run.state.threshold.item() == 1.0
    decayed = QuantileTracker(coverage=0.75, step_size=1.0, decay=1.0).run([3.0, 3.0, 0.0])
    assert decayed.thresholds.tolist() == [0.0, 0.75, 1.125]
    assert decayed.state.threshold.item() == pytest.approx(1.125 - 0.25 / 3)


def test_where_the_tracker_starts():
    method = QuantileTracker(coverage=0.75, step_size=1.0)
    assert method.init([4.0, 1.0, 3.0]).threshold.item() == 3.0 + 1.0  # rank 3 of 3
    assert method.init([4.0, 1.0]).threshold.item() == 4.0  # rank 3 of 2: the largest
    assert method.init([math.inf, 1.0]).threshold.item() == 1.0
    assert method.init([math.inf]).threshold.item() == 0.0
    assert method.init().threshold.item() == 0.0
    assert QuantileTracker(coverage=0, step_size=1.0).init([4.0, 1.0]).threshold.item() == 1.0


def test_pid_by_hand():
    method = ConformalPID(coverage=0.5, step_size=0.25, gain=2.0, saturation=4.0)
    run = method.run([1.0, 1.0, 0.0, 9.0])
    # tracker 0, .125, .25, .125; errors so far 0, .5, 1, .5; the integrator starts at two scores
    integral = [2 * math.tan(1.0 * math.log(2) / 8), 2 * math.tan(0.5 * math.log(3) / 12)]
    assert run.thresholds.tolist() == pytest.approx([0.0, 0.125, 0.25 + integral[0], 0.125 + integral[1]])
    assert run.missed.tolist() == [True, True, False, True]
    assert run.state.num_missed.item() == 3
    # saturated at C = 0.1: the angles are 3.5, 1.8, 0 and 1.6, with pi / 2 = 1.571
    tight = ConformalPID(coverage=0.5, step_size=0.0, gain=2.0, saturation=0.1)
    assert tight.run([9.0] * 6).thresholds.tolist() == [0.0, 0.0, math.inf, math.inf, 0.0, math.inf]
    assert tight.run([0.0] * 6).thresholds.tolist() == [0.0, 0.0, -math.inf, -math.inf, 0.0, -math.inf]


def test_pid_without_gain_is_the_tracker_and_forecasts_shift_the_scores():
    scores = streams("jumps")
    tracker = QuantileTracker(coverage=0.8, step_size=0.1).run(scores)
    pid = ConformalPID(coverage=0.8, step_size=0.1, gain=0.0)
    assert torch.equal(pid.run(scores).thresholds, tracker.thresholds)
    forecasts = (torch.arange(STEPS) % 7).double()  # whole numbers and binary fractions add without rounding
    coarse = (scores * 64).round() / 64
    plain = ConformalPID(coverage=0.75, step_size=0.125, gain=0.5)
    shifted, state = [], plain.init(torch.empty(4, 0))
    for row, forecast in zip(coarse, forecasts, strict=True):
        state = plain.with_forecast(state, forecast)
        shifted.append(plain.threshold(state) - forecast)
        state = plain.update(state, row + forecast)
    assert torch.allclose(torch.stack(shifted), plain.run(coarse).thresholds, atol=1e-12)


def slow_dtaci(scores, coverage, steps, rate, sharing):
    """The paper's algorithm for one series, in plain Python, ranks in rationals of the binary levels."""
    alpha = 1 - coverage
    seen, levels, weights, used = [], [alpha] * len(steps), [1.0] * len(steps), []
    for score in scores:
        share = [w / sum(weights) for w in weights]
        used.append(sum(p * a for p, a in zip(share, levels, strict=True)))
        n = len(seen)
        beta = Fraction(sum(s >= score for s in seen) + 1, n + 1)
        for k, step in enumerate(steps):
            excess = float(beta) - levels[k]
            weights[k] = share[k] * math.exp(-rate * (alpha * excess - min(0.0, excess)))
            levels[k] += step * (alpha - (Fraction(levels[k]) >= beta))
        total = sum(weights)
        weights = [(1 - sharing) * w + sharing * total / len(steps) for w in weights]
        seen.append(score)
    return used


def test_dtaci_is_the_papers_algorithm():
    scores = torch.rand(120, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    steps = (0.03125, 0.25)
    method = DtACI(coverage=0.75, step_sizes=steps, learning_rate=2.0, sharing=0.01)
    state, used = method.init(), []
    for score in scores:
        used.append(method.miscoverage(state).item())
        state = method.update(state, score)
    assert used == pytest.approx(slow_dtaci(scores.tolist(), 0.75, steps, 2.0, 0.01), abs=1e-9)


def test_dtaci_takes_the_papers_rates():
    a, count, horizon = 0.1, 3, 50
    rate = math.sqrt(3 / horizon) * math.sqrt(
        (math.log(horizon * count) + 2) / ((1 - a) ** 2 * a**3 + a**2 * (1 - a) ** 3)
    )
    options = {"step_sizes": (0.01, 0.1, 0.3), "horizon": horizon}
    scores = streams("growing")[:, 0]
    default = DtACI(**options).run(scores)
    written = DtACI(**options, learning_rate=rate, sharing=1 / (2 * horizon)).run(scores)
    assert torch.allclose(default.state.weights, written.state.weights, rtol=1e-9)


def test_dtaci_of_one_step_size_is_aci():
    scores = streams("jumps")
    one = DtACI(coverage=0.8, step_sizes=(0.05,), window=30).run(scores)
    assert torch.equal(one.thresholds, ACI(coverage=0.8, step_size=0.05, window=30).run(scores).thresholds)


def test_dtaci_keeps_its_weights_when_every_expert_is_far_off():
    method = DtACI(coverage=0.9, step_sizes=(0.1, 0.2), learning_rate=1e6, sharing=0.0)
    run = method.run(streams("increasing")[:, :1])
    assert bool(run.state.weights.isfinite().all())
    assert run.state.weights.sum().item() == pytest.approx(1.0)


def test_series_levels_and_step_sizes_at_once_are_each_alone(device):
    scores = streams("jumps", steps=40).to(device)
    start = torch.rand(4, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(device)
    coverages, sizes = torch.tensor([0.5, 0.9]), torch.tensor([0.02, 0.1, 0.4])
    makers = (
        lambda c, g: ACI(coverage=c, step_size=g, window=20),
        lambda c, g: QuantileTracker(coverage=c, step_size=g, decay=0.5),
        lambda c, g: ConformalPID(coverage=c, step_size=g, gain=g, saturation=0.4),
    )
    for make in makers:
        together = make(coverages.unsqueeze(-1), sizes)
        run = together.run(scores[:, :, None, None], together.init(start[:, None, None, :]))
        assert run.thresholds.shape == (40, 4, 2, 3)
        for i, c in enumerate((0.5, 0.9)):
            for j in range(3):
                alone = make(c, sizes[j])
                single = alone.run(scores[:, 2], alone.init(start[2]))
                assert torch.equal(run.thresholds[:, 2, i, j], single.thresholds)
                assert torch.equal(run.missed[:, 2, i, j], single.missed)


def test_a_saved_state_goes_on_bit_for_bit(method, tmp_path):
    scores = streams("growing")
    whole = method.run(scores, method.init(scores[:5].T))
    first = method.run(scores[:50], method.init(scores[:5].T))
    credibly.save(first.state, tmp_path / "state")
    credibly.save(method, tmp_path / "method")
    loaded = credibly.load(tmp_path / "method")
    second = loaded.run(scores[50:], credibly.load(tmp_path / "state"))
    assert torch.equal(torch.cat([first.thresholds, second.thresholds]), whole.thresholds)
    assert torch.equal(torch.cat([first.missed, second.missed]), whole.missed)
    assert torch.equal(loaded.threshold(second.state), method.threshold(whole.state))


def test_update_is_pure(method):
    scores = streams("exchangeable")
    state = method.run(scores[:30]).state
    before = method.threshold(state).clone()
    one, same = method.update(state, scores[30]), method.update(state, scores[30])
    assert torch.equal(method.threshold(state), before)
    assert torch.equal(method.threshold(one), method.threshold(same))
    kept = scores[30].clone()
    scores[30] = -1.0
    scores[:30] = -1.0
    assert torch.equal(method.threshold(one), method.threshold(same))
    assert torch.equal(method.threshold(method.update(state, kept)), method.threshold(one))


def test_single_precision_scores(method):
    scores = streams("exchangeable").float()
    single, double = method.run(scores), method.run(scores.double())
    assert single.thresholds.dtype == torch.float64
    assert torch.equal(single.thresholds, double.thresholds)
    assert torch.equal(method.run(scores.T.contiguous().T).thresholds, single.thresholds)


def test_one_series_without_axes(method):
    scores = streams("exchangeable", series=1)
    assert torch.equal(method.run(scores[:, 0]).thresholds, method.run(scores).thresholds[:, 0])
    assert method.run(scores[:, 0]).coverage.shape == ()
    assert method.run(scores[:1, 0].tolist()).missed.shape == (1,)


def test_bad_scores_are_refused(method):
    state = method.init(torch.ones(4, 3))
    for bad in (math.nan, -math.inf):
        for call in (lambda b: method.update(state, b), lambda b: method.run(b, state), method.init):
            with pytest.raises(NotFiniteError, match="scores"):
                call(torch.full((2, 4), bad))
    with pytest.raises(ShapeError, match="scores"):
        method.update(state, torch.ones(3))
    with pytest.raises(ShapeError, match="scores"):
        method.update(state, torch.ones(5, 4))
    for empty in (torch.empty(0, 4), torch.tensor(1.0)):
        with pytest.raises(ShapeError, match="scores"):
            method.run(empty)
    following = method.update(state, torch.tensor([math.inf, 0.5, 0.5, 0.5]))
    assert not bool(method.threshold(following).isnan().any())


def test_bad_options_are_refused():
    for build in (
        lambda: ACI(coverage=1.5),
        lambda: ACI(step_size=-1),
        lambda: ACI(step_size=torch.tensor([0.1, math.nan])),
        lambda: ACI(window=0),
        lambda: DtACI(coverage=1.0),
        lambda: DtACI(step_sizes=()),
        lambda: DtACI(sharing=2.0),
        lambda: DtACI(learning_rate=-1.0),
        lambda: QuantileTracker(step_size=math.inf),
        lambda: QuantileTracker(step_size=1.0, decay=-1.0),
        lambda: ConformalPID(step_size=1.0, gain=-1.0),
        lambda: ConformalPID(step_size=1.0, gain=1.0, saturation=0.0),
    ):
        with pytest.raises(ValueError, match="must"):
            build()


@pytest.mark.parametrize("make", [ACI, lambda **o: QuantileTracker(step_size=0.1, **o)])
def test_coverage_zero_and_one(make):
    scores = streams("exchangeable") + 0.1
    assert make(coverage=1.0).run(scores, make(coverage=1.0).init(scores[:50].T)).coverage.min().item() > 0.9
    nothing = make(coverage=0.0).run(scores, make(coverage=0.0).init(scores[:50].T))
    assert nothing.coverage.max().item() < 0.1


def test_regions_of_a_step():
    method = ACI(coverage=0.8, step_size=0.1)
    centre = torch.tensor([0.0, 10.0])
    state = method.init(torch.arange(1.0, 21.0).expand(2, 20))
    region = method.region(state, AbsoluteResidual(), Normal(centre, 1.0))
    assert region.lower.tolist() == [-17.0, -7.0]  # rank ceil(21 * .8) = 17
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    sets = QuantileTracker(step_size=0.1).region(
        QuantileTracker(step_size=0.1).init([[0.95, 0.5, 0.95], [0.85, 0.8, 0.85]]), APS(), Categorical(probs=probs)
    )
    assert sets.labels == [[0, 1], [2]]


def test_what_a_run_reports():
    run = QuantileTracker(coverage=0.75, step_size=1.0).run([3.0, 0.5, 0.25, 4.0])
    assert run.coverage.item() == 0.5
    assert run.rolling_coverage(2).tolist() == [0.5, 1.0, 0.5]
    assert run.rolling_coverage(4).tolist() == [0.5]
    for window in (0, 5):
        with pytest.raises(ValueError, match="window"):
            run.rolling_coverage(window)


def test_the_first_threshold_is_the_conformal_one_at_every_level():
    assert math.ceil(25 * (1 - 0.72)) == 8  # and rank 7 is right
    coverages = torch.arange(101, dtype=torch.float64) / 100
    method = ACI(coverage=coverages)
    for n in range(60):
        scores = torch.arange(1, n + 1, dtype=torch.float64)
        expected = [threshold(scores, i / 100).item() for i in range(101)]
        assert method.threshold(method.init(scores)).tolist() == expected


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf]), max_size=25),
    st.none() | st.integers(1, 8),
    st.integers(0, 100),
)
def test_the_window_is_the_latest_scores_in_order(scores, limit, percent):
    window = ScoreWindow.of(scores[:3], limit)
    for score in scores[3:]:
        window = window.push(torch.tensor(score, dtype=torch.float64), limit)
    kept = scores if limit is None else scores[-limit:]
    assert window.recent.tolist() == kept
    assert window.ordered.tolist() == sorted(kept)
    level = torch.tensor([1 - percent / 100], dtype=torch.float64)
    assert window.thresholds(level).item() == threshold(window.ordered, percent / 100).item()
    for score in (0.0, 0.7, 2.0, math.inf):
        p = window.p_values(torch.tensor(score, dtype=torch.float64)).item()
        # the largest level that covers is just below the p-value
        inside = score <= window.thresholds(torch.tensor([p - 1e-9, p], dtype=torch.float64))
        assert inside.tolist() == [True, False]
