"""Every dropout a network applies is found, and replaced by masks that we choose."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.overrides import _get_current_function_mode_stack

from credibly.core.dropout import DropoutMode, MaskSource, Recorder, Site, SiteMasks, draw_masks, row_sites
from credibly.core.errors import NotSupportedError

P = 0.3


class Kept(MaskSource):
    """Keeps every unit as it is, so that a dropout that is not affine becomes the identity."""

    def __init__(self):
        self.shapes = []

    def next_mask(self, inputs, probability, shape, *, alpha):
        self.shapes.append(shape)
        return torch.ones(shape, dtype=inputs.dtype)


class Random(MaskSource):
    """Masks of torch's generator."""

    def next_mask(self, inputs, probability, shape, *, alpha):
        site = Site(probability, shape, alpha)
        return draw_masks([site], torch.rand(site.size), inputs.dtype)[0]


class Functional(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, P, self.training)


class Attention(nn.MultiheadAttention):
    def forward(self, x, need_weights=False):
        return super().forward(x, x, x, need_weights=need_weights)[0]


class Weights(Attention):
    def forward(self, x):
        return super().forward(x, need_weights=True)


PLAIN = (2, 3, 4, 5, 6)
# a network, the shape of its inputs, the shapes of the masks
SITES = {
    "module": (lambda: nn.Dropout(P), (2, 3), [(2, 3)]),
    "inplace": (lambda: nn.Dropout(P, inplace=True), (2, 3), [(2, 3)]),
    "module_1d": (lambda: nn.Dropout1d(P), (2, 3, 4), [(2, 3, 1)]),
    "module_2d": (lambda: nn.Dropout2d(P), (2, 3, 4, 5), [(2, 3, 1, 1)]),
    "module_3d": (lambda: nn.Dropout3d(P), PLAIN, [(2, 3, 1, 1, 1)]),
    "alpha": (lambda: nn.AlphaDropout(P), (2, 3), [(2, 3)]),
    "feature_alpha": (lambda: nn.FeatureAlphaDropout(P), (2, 3, 4), [(2, 3, 1)]),
    "functional": (lambda: Functional(F.dropout), (2, 3), [(2, 3)]),
    "functional_1d": (lambda: Functional(F.dropout1d), (2, 3, 4), [(2, 3, 1)]),
    "functional_2d": (lambda: Functional(F.dropout2d), (2, 3, 4, 5), [(2, 3, 1, 1)]),
    "functional_3d": (lambda: Functional(F.dropout3d), PLAIN, [(2, 3, 1, 1, 1)]),
    "functional_alpha": (lambda: Functional(F.alpha_dropout), (2, 3), [(2, 3)]),
    "functional_feature_alpha": (lambda: Functional(F.feature_alpha_dropout), (2, 3, 4), [(2, 3, 1)]),
    "torch": (lambda: Functional(torch.dropout), (2, 3), [(2, 3)]),
    "torch_feature": (lambda: Functional(torch.feature_dropout), (2, 3, 4), [(2, 3, 1)]),
    "torch_alpha": (lambda: Functional(torch.alpha_dropout), (2, 3), [(2, 3)]),
    "torch_feature_alpha": (lambda: Functional(torch.feature_alpha_dropout), (2, 3, 4), [(2, 3, 1)]),
    "attention": (lambda: Attention(4, 2, dropout=P, batch_first=True), (2, 5, 4), [(2, 2, 5, 5)]),
    "attention_weights": (lambda: Weights(4, 2, dropout=P, batch_first=True), (2, 5, 4), [(4, 5, 5)]),
    "attention_first": (lambda: Attention(4, 2, dropout=P), (5, 2, 4), [(2, 2, 5, 5)]),
    "attention_weights_first": (lambda: Weights(4, 2, dropout=P), (5, 2, 4), [(4, 5, 5)]),
    "encoder_layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=P, batch_first=True),
        (2, 5, 4),
        [(2, 2, 5, 5), (2, 5, 4), (2, 5, 8), (2, 5, 4)],
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=P, batch_first=True), 2),
        (2, 5, 4),
        [(2, 2, 5, 5), (2, 5, 4), (2, 5, 8), (2, 5, 4)] * 2,
    ),
}
EVERY = pytest.mark.parametrize("name", SITES)
ALPHA = [name for name in SITES if "alpha" in name]


def build(name, dtype=torch.float32):
    make, shape, _ = SITES[name]
    torch.manual_seed(1)
    return make().to(dtype), torch.randn(shape, dtype=dtype)


# -- sites ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("training", [True, False])
@EVERY
def test_every_dropout_is_found_with_its_probability_and_shape(name, training, gradients):
    net, x = build(name)
    net.train(training)
    recorder = Recorder()
    random = torch.get_rng_state()
    with torch.set_grad_enabled(gradients), DropoutMode(recorder, always=True):
        recorded = net(x.clone())
    assert torch.equal(torch.get_rng_state(), random)
    expected = [Site(P, shape, name in ALPHA) for shape in SITES[name][2]]
    assert recorder.sites == expected
    torch.testing.assert_close(recorded, net.eval()(x))


@EVERY
def test_in_evaluation_mode_nothing_is_dropped_unless_always(name):
    net, x = build(name)
    kept = Kept()
    with DropoutMode(kept, always=False):
        torch.testing.assert_close(net.eval()(x.clone()), net(x.clone()))
        assert kept.shapes == []
        net.train()(x.clone())
    assert kept.shapes == SITES[name][2]


@pytest.mark.parametrize("name", [name for name in SITES if name not in ALPHA])
def test_masks_of_ones_give_the_plain_network(name, dtype):
    net, x = build(name, dtype)
    net.eval()
    with DropoutMode(Kept(), always=True):
        masked = net(x.clone())
    torch.testing.assert_close(masked, net(x))


def test_a_dropout_that_is_off_is_no_site():
    recorder = Recorder()
    x = torch.randn(2, 3)
    with DropoutMode(recorder, always=True):
        assert torch.equal(nn.Dropout(0.0)(x), x)
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.0)
        nn.MultiheadAttention(3, 1).eval()(x, x, x)
    assert recorder.sites == []


def test_a_dropout_of_everything_gives_zeros():
    x = torch.randn(2, 3)
    for function in (F.dropout, F.alpha_dropout):
        with DropoutMode(Random(), always=True):
            assert torch.equal(function(x, 1.0), function(x, 1.0) * 0)
        assert torch.equal(function(x, 1.0, training=True), torch.zeros(2, 3))


def test_units_are_dropped_and_scaled_by_the_mask(dtype):
    x = torch.randn(2, 3, dtype=dtype)
    keep = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=dtype)
    masks = draw_masks([Site(P, (2, 3))], keep.flatten(), dtype)
    with DropoutMode(SiteMasks([Site(P, (2, 3))], masks), always=True):
        torch.testing.assert_close(nn.Dropout(P).eval()(x), x * keep / (1 - P))


@pytest.mark.parametrize("name", ALPHA)
def test_alpha_dropout_takes_torchs_two_values(name):
    net, x = build(name, torch.float64)
    torch.manual_seed(0)
    torchs = torch.stack([net.train()(x) for _ in range(200)])
    with DropoutMode(Random(), always=True):
        ours = torch.stack([net.eval()(x) for _ in range(200)])
    for index in range(x[0].numel()):
        own, other = (values.reshape(200, *x.shape)[:, 0].reshape(200, -1)[:, index] for values in (ours, torchs))
        torch.testing.assert_close(own.unique(), other.unique())


def test_alpha_dropout_keeps_mean_and_variance_of_standard_normal_inputs():
    torch.manual_seed(0)
    x = torch.randn(200_000, dtype=torch.float64)
    with DropoutMode(Random(), always=True):
        out = F.alpha_dropout(x, P, training=False)
    # 5 standard errors of a mean and of a variance whose kurtosis is below 3
    assert abs(float(out.mean())) < 5 / 200_000**0.5
    assert abs(float(out.var()) - 1) < 5 * (2 / 200_000) ** 0.5


# -- attention -----------------------------------------------------------------------------------------------------


def attention_cases():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 7, 6), torch.randn(2, 4, 7, 3)
    blocked = torch.rand(5, 7) > 0.4
    blocked[:, 0] = True
    nothing = blocked.clone()
    nothing[2] = False
    return {
        "plain": ((q, k, v), {}),
        "boolean": ((q, k, v), {"attn_mask": blocked}),
        "added": ((q, k, v), {"attn_mask": torch.randn(2, 1, 5, 7)}),
        "nothing to attend to": ((q, k, v), {"attn_mask": nothing}),
        "added infinity": ((q, k, v), {"attn_mask": torch.zeros(5, 7).masked_fill(~nothing, -torch.inf)}),
        "causal": ((q, k, v), {"is_causal": True}),
        "scale": ((q, k, v), {"scale": 0.3}),
        "grouped": ((q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
        "grouped causal": ((q, k[:, :1], v[:, :1]), {"enable_gqa": True, "is_causal": True}),
        "no batch": ((q[0, 0], k[0, 0], v[0, 0]), {}),
    }


@pytest.mark.parametrize("name", attention_cases())
def test_written_out_attention_equals_torchs_without_dropout(name, dtype):
    tensors, options = attention_cases()[name]
    q, k, v = (tensor.to(dtype).requires_grad_() for tensor in tensors)
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        options["attn_mask"] = options["attn_mask"].to(dtype)
    with DropoutMode(Kept(), always=True):
        written = F.scaled_dot_product_attention(q, k, v, dropout_p=P, **options)
    plain = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, **options)
    torch.testing.assert_close(written, plain)
    gradients = torch.autograd.grad(written.sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(gradients, torch.autograd.grad(plain.sum(), (q, k, v)))


@pytest.mark.parametrize("mask", ["key_padding", "attn", "both"])
def test_attention_modules_with_masks_equal_themselves(mask):
    net = nn.MultiheadAttention(4, 2, dropout=P, batch_first=True).eval()
    x = torch.randn(2, 5, 4)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    options = {}
    if mask != "attn":
        options["key_padding_mask"] = padding
    if mask != "key_padding":
        options["attn_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with DropoutMode(Kept(), always=True):
        masked, weights = net(x, x, x, **options)
    plain, plain_weights = net(x, x, x, **options)
    torch.testing.assert_close(masked, plain)
    torch.testing.assert_close(weights, plain_weights)


# -- what cannot be reached ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [True, False])
def test_dropout_inside_a_recurrent_kernel_is_refused_by_name(kind, packed):
    net = kind(3, 4, num_layers=2, dropout=P, batch_first=True)
    x = torch.randn(2, 5, 3)
    x = nn.utils.rnn.pack_padded_sequence(x, [5, 4], batch_first=True) if packed else x
    with DropoutMode(Recorder(), always=True), pytest.raises(NotSupportedError, match=r"p=0.3.*cannot"):
        net(x)
    with DropoutMode(Recorder(), always=True):
        kind(3, 4, num_layers=2)(torch.randn(5, 2, 3))


# -- one mask per draw ---------------------------------------------------------------------------------------------


def recorded(net, shape, row_axis, rows):
    recorder = Recorder()
    with torch.no_grad(), DropoutMode(recorder, always=True):
        net(torch.randn(*shape[:row_axis], rows, *shape[row_axis + 1 :]))
    return recorder.sites


@pytest.mark.parametrize("name", [*(name for name in SITES if not name.endswith("first")), "attention_first"])
def test_one_mask_serves_every_row_and_a_row_does_not_depend_on_its_batch(name, dtype):
    net, _ = build(name, torch.float32)
    shape, axis = SITES[name][1], int(name == "attention_first")
    net.eval()
    sites = row_sites(recorded(net, shape, axis, 2), recorded(net, shape, axis, 3))
    net = net.to(dtype)
    x = torch.randn(*shape[:axis], 6, *shape[axis + 1 :], dtype=dtype)
    size = sum(site.size for site in sites)
    uniforms = torch.rand(4, size, dtype=torch.float32)
    masks = draw_masks(sites, uniforms, dtype)
    draws = list(zip(*masks, strict=True))

    def draw(own, inputs):
        with DropoutMode(SiteMasks(sites, own), always=True):
            return net(inputs)

    whole = torch.stack([draw(own, x.clone()) for own in draws])
    rows = [torch.stack([draw(own, part.clone()) for own in draws]) for part in x.split(1, axis)]
    torch.testing.assert_close(torch.cat(rows, axis + 1), whole)
    torch.testing.assert_close(vmap(lambda own: draw(own, x.clone()))(masks), whole)
    same = x.select(axis, 0).unsqueeze(axis).expand_as(x)
    equal = draw(draws[0], same.clone())
    torch.testing.assert_close(equal, equal.select(axis, 0).unsqueeze(axis).expand_as(equal))


def test_masks_keep_a_unit_where_its_number_reaches_the_probability(dtype):
    sites = [Site(0.2, (2,)), Site(0.5, (1, 2)), Site(0.5, (1,), alpha=True), Site(1.0, (1,))]
    uniforms = torch.tensor([[0.2, 0.1, 0.49, 0.5, 0.9, 0.99], [0.0, 0.99, 0.7, 0.0, 0.1, 0.0]])
    masks = draw_masks(sites, uniforms, dtype)
    expected = [[1.25, 0, 0, 2, 1, 0], [0, 1.25, 2, 0, 0, 0]]
    assert [tuple(mask.shape) for mask in masks] == [(2, *site.shape) for site in sites]
    flat = torch.cat([mask.flatten(1) for mask in masks], 1)
    torch.testing.assert_close(flat, torch.tensor(expected, dtype=dtype))


def test_sites_that_change_from_pass_to_pass_are_refused():
    mask = [torch.ones(3)]
    with DropoutMode(SiteMasks([Site(P, (3,))], mask), always=True):
        F.dropout(torch.ones(3), P)
        with pytest.raises(NotSupportedError, match="depends on the values"):
            F.dropout(torch.ones(3), P)
    with (
        DropoutMode(SiteMasks([Site(P, (3,))], mask), always=True),
        pytest.raises(NotSupportedError, match="depends on the values"),
    ):
        F.dropout(torch.ones(3), 0.5)


def test_dropout_that_mixes_rows_is_refused():
    with pytest.raises(NotSupportedError, match="number of dropouts depends on the number of rows"):
        row_sites([Site(P, (2,))], [Site(P, (3,)), Site(P, (3,))])
    for two, three in (((2, 2), (3, 3)), ((3,), (4,)), ((2,), (4,))):
        with pytest.raises(NotSupportedError, match="does not treat rows one by one"):
            row_sites([Site(P, two)], [Site(P, three)])
    assert row_sites([Site(P, (7, 5))], [Site(P, (7, 5))]) == [Site(P, (7, 5))]
    assert row_sites([Site(P, (4, 5))], [Site(P, (6, 5))]) == [Site(P, (2, 5), row_axis=0)]


# -- nothing is left behind ----------------------------------------------------------------------------------------


class Raises(MaskSource):
    def next_mask(self, inputs, probability, shape, *, alpha):
        raise RuntimeError("no mask")


@pytest.mark.parametrize("name", ["module", "attention", "attention_weights", "encoder_layer"])
def test_no_mode_is_left_active_after_an_exception(name):
    net, x = build(name)
    with pytest.raises(RuntimeError, match="no mask"), DropoutMode(Raises(), always=True):
        net(x)
    assert _get_current_function_mode_stack() == []
    torch.manual_seed(0)
    one = net.train()(x.clone())
    torch.manual_seed(1)
    assert not torch.equal(one, net(x.clone()))


def test_modules_keep_their_flags_and_probabilities():
    net, x = build("encoder_layer")
    net.eval()
    with DropoutMode(Random(), always=True):
        net(x)
    assert not any(part.training for part in net.modules())
    assert net.self_attn.dropout == P
