"""Options: what each refuses and says, how they are saved, and the variants that have names."""

import dataclasses
import json
import re

import pytest

from tokenmerge import FullSteps, LowerBound, MergeConfig, SampledKeys, TileMean, ToDo, ToFu, ToMA, ToMeSD
from tokenmerge.errors import ConfigError
from tokenmerge.ops.selection import select_grid

METHODS = [ToMA, LowerBound, ToMeSD, ToFu, ToDo]


def min_count(similarity, count):
    """A selector that forgets one of its arguments."""


# method, options, what the error must name: the field, the value, and something that is allowed
REFUSED = [
    *[(method, {"ratio": ratio}, ["ratio", repr(ratio), "between 0 and 1"])
      for method in METHODS for ratio in (0, 1, -1, float("nan"), float("inf"), "half", True, None)],
    *[(method, {"parts": ["selfie"]}, ["parts", "'selfie'", "'self'"]) for method in METHODS],
    *[(method, {"parts": []}, ["parts", "empty", "'self'"]) for method in METHODS],
    *[(method, {"parts": 3}, ["parts", "3", "list"]) for method in METHODS],
    *[(method, {"scope": "everything"}, ["scope", "'everything'", "'site'"]) for method in METHODS],
    *[(method, {"keys": "some"}, ["keys", "'some'", "'sampled'"]) for method in (*METHODS, TileMean, SampledKeys)],
    *[(method, {"correction": 6}, ["correction", "6", "FullSteps(every=6"]) for method in METHODS],
    *[(method, {"correction": {"often": 6}}, ["FullSteps", "'often'", "every, within"]) for method in METHODS],
    *[(method, {"correction": FullSteps()}, ["correction", method.__name__, "leave correction out"])
      for method in (ToDo, SampledKeys)],
    *[(method, {"select_every": every}, ["select_every", repr(every), "at least 1"])
      for method in (ToMA, LowerBound, ToMeSD, ToFu) for every in (0, 2.5, True)],
    *[(method, {"min_tokens": -1}, ["min_tokens", "-1", "at least 0"]) for method in METHODS],
    *[(method, {"proportional": "yes"}, ["proportional", "'yes'", "True or False"]) for method in METHODS],
    *[(method, {"skip_blocks": value}, ["skip_blocks", repr(value)])
      for method in METHODS for value in (-1, True, 1.5, [1, -2], [1, 2, 3], [1, "a"], [True, 1])],
    (ToMA, {"region": "circle"}, ["region", "'circle'", "'tile'", "'stripe'", "'stripe+global'"]),
    (ToMA, {"selector": "best"}, ["selector", "'best'", "'facility_location'"]),
    *[(method, {"tile": tile}, ["tile", repr(tile), "(height, width)"])
      for method in (ToMA, TileMean, SampledKeys) for tile in ((4,), (1, 2, 3, 4))],
    *[(method, {"tile": (4, 0)}, ["tile", "0", "at least 1"]) for method in (ToMA, TileMean, SampledKeys)],
    *[(method, {"tile": "big"}, ["tile", "'big'"]) for method in (ToMA, TileMean, SampledKeys)],
    *[(method, {"tile": 1}, ["tile", "at least 2 tokens"]) for method in (TileMean, SampledKeys)],
    *[(method, {"tile": tile}, ["tile", repr(tile), "one whole number for a square"])
      for method in (ToMA, TileMean) for tile in (4.0, None, True, float("nan"))],
    *[(ToMA, {"selector": selector}, ["selector", "three arguments"]) for selector in (lambda: None, min_count)],
    (ToMA, {"selector": None}, ["selector None", "'facility_location'"]),
    (ToMA, {"select_every": (10, 0)}, ["select_every", "0", "at least 1"]),
    (ToMA, {"select_every": (10, 5, 1)}, ["select_every", "(10, 5, 1)", "two (destinations, weights)"]),
    (ToMA, {"select_every": (10, 3)}, ["select_every", "(10, 3)", "(10, 2)"]),
    *[(method, {"keys": keys, "scope": scope}, ["keys", repr(keys), repr(scope), "scope='site'"])
      for method in (ToMA, TileMean) for keys in ("all", "sampled") for scope in ("block", "stack")],
    (SampledKeys, {"max_downsample": 0}, ["max_downsample", "0", "at least 1"]),
    (SampledKeys, {"scope": "stack"}, ["scope", "'stack'", "'site'"]),
    *[(method, {"sx": 0}, ["sx", "0", "at least 1"]) for method in (ToMeSD, ToFu)],
    (ToMeSD, {"sy": 1.5}, ["sy", "1.5", "at least 1"]),
    (ToMeSD, {"ratio": 0.76}, ["ratio", "0.76", "0.75", "sx, sy"]),
    (ToMeSD, {"ratio": 0.51, "sx": 2, "sy": 1}, ["ratio", "0.51", "2 x 1", "0.5"]),
    (ToMeSD, {"ratio": 0.6, "per_cell": 2}, ["ratio", "0.6", "at most 0.5"]),
    (ToMeSD, {"per_cell": 4}, ["per_cell", "4", "at most 3"]),
    (ToMeSD, {"per_cell": 0}, ["per_cell", "0", "at least 1"]),
    (ToMeSD, {"use_rand": 1}, ["use_rand", "1", "True or False"]),
    (ToMeSD, {"seed": -3}, ["seed", "-3", "at least 0"]),
    (ToMeSD, {"max_downsample": 0}, ["max_downsample", "0", "at least 1"]),
    (ToFu, {"prune": 1.5}, ["prune", "1.5", "from 0 to 1"]),
    (ToFu, {"prune": "early"}, ["prune", "'early'", "from 0 to 1"]),
    (ToFu, {"prune": (0, -2)}, ["prune", "-2", "at least 0"]),
    (ToDo, {"parts": ("mlp",)}, ["parts", "'mlp'", "'self'"]),
    (ToDo, {"scope": "block"}, ["scope", "'block'", "'site'"]),
    (ToDo, {"coarser_ratios": (1.0,)}, ["coarser_ratios", "1.0", "from 0"]),
    (ToDo, {"coarser_ratios": 0.5}, ["coarser_ratios", "0.5", "list"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "options", "named"),
    REFUSED,
    ids=lambda value: getattr(value, "__name__", None) or re.sub(" at 0x.*?>", ">", repr(value))[:40],
)
def test_a_wrong_value_is_named_with_what_is_allowed(method, options, named):
    with pytest.raises(ConfigError) as refused:
        method(**options)
    for word in named:
        assert word in str(refused.value)


def test_a_config_error_is_a_value_error():
    with pytest.raises(ValueError, match="ratio"):
        ToMA(ratio=2)


@pytest.mark.parametrize("factor", [0, -2, 1.5, True, "two"])
def test_todo_refuses_factors_that_are_not_whole(factor):
    with pytest.raises(ConfigError, match=r"factor is .*whole number"):
        ToDo.by_factor(factor)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"every": 1}, ["every", "1", "at least 2"]),
        ({"every": 2.5}, ["every", "2.5"]),
        ({"within": 0}, ["within", "0", "fraction of the noise"]),
        ({"within": 1.5}, ["within", "1.5", "up to 1"]),
        ({"within": "soon"}, ["within", "'soon'"]),
    ],
)
def test_full_steps_refuse_what_makes_no_sense(options, named):
    with pytest.raises(ConfigError) as refused:
        FullSteps(**options)
    for word in named:
        assert word in str(refused.value)


def test_a_released_toma_has_full_steps_without_a_correction():
    with pytest.raises(ConfigError, match=r"merges only every 3 steps: both say which steps run full"):
        dataclasses.replace(ToMA.released(), correction=FullSteps())


def test_toma_has_twelve_options_and_each_is_described():
    names = [field.name for field in dataclasses.fields(ToMA)]
    assert len(names) <= 12
    for name in names:
        assert f"\n        {name}: " in ToMA.__doc__


def test_one_number_is_a_square_tile():
    assert TileMean(tile=2).tile == ToMA(tile=2).tile == SampledKeys(tile=2).tile == (2, 2)
    assert (TileMean().ratio, TileMean(tile=2).ratio, SampledKeys(tile=(1, 2)).ratio) == (0.9375, 0.75, 0.5)


def test_a_correction_widens_the_scope_where_the_options_allow_it():
    assert (ToMA().merged_per, ToMA(correction=FullSteps()).merged_per) == ("site", "stack")
    assert TileMean(parts="self").merged_per == TileMean(keys="all").merged_per == "site"


@pytest.mark.parametrize(("sx", "sy"), [(2, 2), (3, 3), (1, 2), (4, 2), (5, 7)])
def test_tomesd_takes_the_highest_ratio_its_cells_allow(sx, sy):
    ToMeSD(ratio=1 - 1 / (sx * sy), sx=sx, sy=sy)
    ToMeSD(ratio=(sx * sy - 1) / (sx * sy), sx=sx, sy=sy)


EXAMPLES = [
    TileMean(),
    ToMA.paper(),
    ToMA.paper_block(0.25),
    ToMA.paper_pinv(),
    ToMA.released(),
    TileMean(tile=2, correction=None, keys="all"),
    TileMean(correction=FullSteps(every=3, within=None)),
    SampledKeys(tile=(2, 4)),
    ToMA(tile=(2, 4, 4), keys="all", skip_blocks=("mid_block.*",), parts=("self", "mlp"), select_every=(4, 2)),
    LowerBound(skip_blocks=3),
    ToMeSD(),
    ToMeSD(sx=3, sy=1, per_cell=2, ratio=0.3, use_rand=False, seed=5, max_downsample=4),
    ToFu(),
    ToFu(prune=(0, 3)),
    ToDo(),
    ToDo.by_factor(4, 2),
]


@pytest.mark.parametrize("config", EXAMPLES, ids=repr)
def test_saving_and_loading_gives_the_same_config(config):
    saved = config.to_dict()
    assert saved["method"] == type(config).__name__
    loaded = MergeConfig.from_dict(json.loads(json.dumps(saved)))
    assert type(loaded) is type(config)
    assert loaded == config
    del saved["method"]
    assert type(config).from_dict(saved) == config


@pytest.mark.parametrize("method", METHODS)
def test_configs_cannot_be_changed(method):
    with pytest.raises(dataclasses.FrozenInstanceError):
        method().min_tokens = 4


def test_a_function_cannot_be_saved():
    with pytest.raises(ConfigError, match="selector is a function"):
        ToMA(selector=select_grid).to_dict()


@pytest.mark.parametrize(
    ("method", "option", "suggestion"),
    [(ToMA, "ration", "ratio"), (ToMeSD, "use_random", "use_rand"), (ToDo, "coarse_ratios", "coarser_ratios")],
)
def test_an_unknown_option_suggests_the_near_one(method, option, suggestion):
    with pytest.raises(ConfigError, match=f"{method.__name__} has no option '{option}': did you mean {suggestion}"):
        method.build({option: 0.5})


def test_an_unknown_option_that_is_near_to_none_lists_them_all():
    with pytest.raises(ConfigError, match=r"it has parts, .*selector"):
        ToMA.build({"zzz": 1})


@pytest.mark.parametrize(("kind", "options", "sentence"), [
    (ToMA, {"nope": 1}, "ToMA has no option 'nope': did you mean scope?"),
    (ToMA, {"ration": 0.5}, "ToMA has no option 'ration': did you mean ratio?"),
    (ToDo, {"zzz": 1}, "ToDo has no option 'zzz': it has parts, "),
    (FullSteps, {"evry": 3}, "FullSteps has no option 'evry': did you mean every?"),
])  # fmt: skip
def test_an_unknown_option_of_a_constructor_is_a_sentence(kind, options, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        kind(**options)


def test_a_value_without_its_name_is_a_sentence():
    with pytest.raises(ConfigError, match=re.escape("write ToMA(ratio=0.5), for instance")):
        ToMA(0.5)


def test_a_class_that_is_named_like_a_method_is_refused_and_the_method_stays():
    with pytest.raises(ConfigError, match=r"tokenmerge\.methods\.toma\.ToMA.*give the class another name"):
        type("ToMA", (MergeConfig,), {"__module__": "mine"})
    assert type(MergeConfig.from_dict({"method": "ToMA"})) is ToMA
    for _ in range(2):  # as when a cell of a notebook runs again
        mine = type("MineOfThisTest", (MergeConfig,), {"__module__": "mine"})
    assert type(MergeConfig.from_dict({"method": "MineOfThisTest"})) is mine


@pytest.mark.parametrize("saved", [None, 3, "ToMA", ["ToMA"]])
def test_what_is_no_saved_config_is_a_sentence(saved):
    with pytest.raises(ConfigError, match=re.escape(f"{saved!r} is no saved config: give a dict")):
        MergeConfig.from_dict(saved)


@pytest.mark.parametrize("name", ["Toma", "nothing", 3, None])
def test_an_unknown_method_lists_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"is not known: .*'ToMA'.*'ToMeSD'"):
        MergeConfig.from_dict({"method": name})


def test_the_papers_variants():
    paper = {"ratio": 0.5, "tile": (8, 8), "proportional": False, "select_every": (10, 5), "scope": "site"}
    assert ToMA.paper(0.25) == ToMA(**{**paper, "ratio": 0.25}, region="stripe+global")
    assert ToMA.paper_stripe() == ToMA(**paper, region="stripe")
    assert ToMA.paper_tile() == ToMA(**paper, region="tile")
    assert ToMA.paper_block() == ToMA(**{**paper, "scope": "block"}, region="stripe+global")
    assert (ToMA.paper().refresh_every, ToMA().refresh_every) == ((10, 5), (5, 5))
    assert (ToMA.paper_pinv().unmerges_by, ToMA.released().merge_every) == ("pseudo-inverse", 3)


def test_toma_is_the_papers_method_with_small_tiles_and_proportional_attention():
    config = ToMA()
    assert (config.ratio, config.tile, config.proportional, config.correction) == (0.5, (4, 4), True, None)
    assert (config.selector, config.keys, config.region) == ("facility_location", "merged", "tile")


def test_tomesd_defaults_are_the_packages():
    config = ToMeSD()
    assert (config.ratio, config.sx, config.sy, config.use_rand, config.max_downsample) == (0.5, 2, 2, True, 1)
    assert (config.parts, config.share, config.refresh_every) == (("self",), "layer", (1, 1))
    assert config.proportional is False


@pytest.mark.parametrize(("factors", "ratios"), [((2,), [0.75]), ((3,), [8 / 9]), ((4, 2), [0.9375, 0.75])])
def test_todo_by_factor(factors, ratios):
    config = ToDo.by_factor(*factors)
    assert [config.ratio, *config.coarser_ratios] == pytest.approx(ratios)


@pytest.mark.parametrize("config", [ToMA(), TileMean(), SampledKeys(), ToMeSD(), ToFu()])
def test_a_sequence_is_merged_as_one_row(config: MergeConfig) -> None:
    layout = config.layout((1, 64))
    assert min(layout.kept, layout.kept_keys) <= 32
