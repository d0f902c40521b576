"""Profiles laid over plain values, typed models, and writing params.yaml without losing a comment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from tasks import settings
from tasks.errors import UserError
from tasks.params import StageParams, Strict
from tasks.settings import PROFILES, merge, parse_setting, profile_of, resolve, validate, write_with_settings

KEYS = st.sampled_from(["nodes", "lr", "encoder", "depth"])
VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(max_size=3), st.lists(st.integers(), max_size=2), st.none()
)
LEAVES = st.dictionaries(KEYS, VALUES, max_size=3)
PLAIN = st.dictionaries(KEYS, VALUES | LEAVES, max_size=3)


def with_overrides(inner):
    """Mappings whose profile keys hold mappings, as the file demands."""
    overrides = st.dictionaries(st.sampled_from(["smoke", "paper"]), inner, max_size=2)
    return st.builds(dict.__or__, st.dictionaries(KEYS, VALUES | inner, max_size=3), overrides)


BLOCKS = with_overrides(with_overrides(LEAVES))


def keys_of(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)


def without_profiles(value):
    if not isinstance(value, dict):
        return value
    return {key: without_profiles(inner) for key, inner in value.items() if key not in PROFILES}


@given(BLOCKS, st.sampled_from(PROFILES))
def test_a_resolved_block_holds_no_profile(block, profile):
    assert not set(keys_of(resolve(block, profile))) & set(PROFILES)


@given(BLOCKS)
def test_cpu_is_the_plain_block(block):
    assert resolve(block, "cpu") == without_profiles(block)


@given(BLOCKS, st.sampled_from(PROFILES))
def test_resolving_changes_nothing_of_what_it_is_given(block, profile):
    before = repr(block)
    resolved = resolve(block, profile)
    assert repr(block) == before
    assert resolve(resolved, profile) == resolved


@given(PLAIN, PLAIN)
def test_merge_takes_every_leaf_of_the_override(base, override):
    merged = merge(base, override)
    assert set(merged) == set(base) | set(override)
    assert merge(merged, override) == merged


def test_overrides_stand_at_any_depth():
    block = {
        "nodes": 3000,
        "encoder": {"hidden": 16, "layers": [2, 2], "smoke": {"hidden": 4, "layers": [1]}},
        "smoke": {"nodes": 300},
        "paper": {"source": "WikiCS"},
    }
    assert resolve(block, "smoke") == {"nodes": 300, "encoder": {"hidden": 4, "layers": [1]}}
    assert resolve(block, "cpu") == {"nodes": 3000, "encoder": {"hidden": 16, "layers": [2, 2]}}
    assert resolve(block, "paper") == {"nodes": 3000, "encoder": {"hidden": 16, "layers": [2, 2]}, "source": "WikiCS"}


def test_an_outer_override_wins_over_an_inner_one_and_keeps_its_other_keys():
    block = {
        "encoder": {"hidden": 16, "depth": 3, "smoke": {"hidden": 4, "depth": 1}},
        "smoke": {"encoder": {"hidden": 8}},
    }
    assert resolve(block, "smoke") == {"encoder": {"hidden": 8, "depth": 1}}


def test_an_override_that_is_no_mapping_is_refused():
    with pytest.raises(UserError, match=r"params\.yaml: the override `smoke` holds 3, a mapping is wanted"):
        resolve({"nodes": 3000, "smoke": 3}, "smoke")


class Encoder(Strict):
    hidden: int = Field(16, gt=0, description="width")


class Params(StageParams):
    encoder: Encoder = Encoder()
    noise: float = Field(gt=0, description="standard deviation")


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (
            {"noise": 1, "nosie": 2},
            r"params\.yaml, a\.data\.nosie is not a parameter; known keys: seed, threads, encoder, noise",
        ),
        (
            {"noise": 1, "encoder": {"hiden": 2}},
            r"params\.yaml, a\.data\.encoder\.hiden is not a parameter; known keys: hidden",
        ),
        ({}, r"params\.yaml, a\.data\.noise is missing"),
        ({"noise": "loud"}, r"params\.yaml, a\.data\.noise is 'loud': input should be a valid number"),
        ({"noise": -1}, r"params\.yaml, a\.data\.noise is -1: input should be greater than 0"),
        (
            {"noise": 1, "encoder": {"hidden": 0}},
            r"params\.yaml, a\.data\.encoder\.hidden is 0: input should be greater than 0",
        ),
        ({"noise": 1, "encoder": 3}, r"params\.yaml, a\.data\.encoder is 3: "),
        ({"noise": 1, "seed": -1}, r"params\.yaml, a\.data\.seed is -1: input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_file(block, sentence):
    with pytest.raises(UserError, match=f"^{sentence}") as caught:
        validate(Params, block, "params.yaml, a.data")
    assert "\n" not in str(caught.value)


def test_every_wrong_parameter_is_named_at_once():
    with pytest.raises(UserError) as caught:
        validate(Params, {"noise": 0, "sede": 1}, "params.yaml, a.data")
    assert "a.data.noise" in str(caught.value)
    assert "a.data.sede" in str(caught.value)


def test_numbers_that_are_no_numbers_are_refused():
    for value in (float("nan"), float("inf")):
        with pytest.raises(UserError, match=r"a\.data\.noise is (nan|inf): input should be a finite number"):
            validate(Params, {"noise": value}, "params.yaml, a.data")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", r"params\.yaml, line \d+: not valid YAML"),
        ("- 1\n", r"params\.yaml: a mapping with `profile` and one section per paper is wanted"),
        ("a: 1\na: 2\n", r"params\.yaml, line \d+: not valid YAML"),
    ],
)
def test_an_unreadable_file_is_named_with_its_line(tmp_path, text, sentence):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        settings.read(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"params\.yaml is missing"):
        settings.read(tmp_path / "params.yaml")


def test_unknown_profiles_sections_and_blocks_are_named():
    with pytest.raises(UserError, match=r"params\.yaml, profile: 'fast' is not one of smoke, cpu, paper"):
        profile_of({"profile": "fast"})
    with pytest.raises(UserError, match=r"params\.yaml, profile: \['cpu'\] is not one of"):
        profile_of({"profile": ["cpu"]})
    with pytest.raises(UserError, match=r"params\.yaml: there is no section `bes`"):
        settings.block_of({"profile": "cpu"}, "bes", "data")
    with pytest.raises(UserError, match=r"params\.yaml, bes\.data: 3 is not a mapping"):
        settings.block_of({"bes": {"data": 3}}, "bes", "data")
    assert settings.block_of({"bes": {"data": None}}, "bes", "data") == {}
    assert settings.block_of({"bes": {}}, "bes", "data") == {}


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("train.lr=1e-3", (["train", "lr"], 1e-3)),
        ("train.lr=1.0e-3", (["train", "lr"], 1e-3)),
        ("train.layers=[1, 2]", (["train", "layers"], [1, 2])),
        ("train.name=", (["train", "name"], None)),
        ("train.on=true", (["train", "on"], True)),
        ("train.note=a=b", (["train", "note"], "a=b")),
    ],
)
def test_settings_are_yaml_values(setting, found):
    assert parse_setting(setting) == found


@pytest.mark.parametrize("setting", ["train.lr", "=3", "train..lr=3", ".lr=3"])
def test_a_setting_without_key_or_value_is_refused(setting):
    with pytest.raises(UserError, match="write key=value"):
        parse_setting(setting)


def test_a_setting_whose_value_is_no_yaml_is_refused():
    with pytest.raises(UserError, match=r"the value '\[1' is not valid YAML"):
        parse_setting("train.lr=[1")


FILE = """\
# every parameter
profile: smoke  # one of three

bes:
  # the graph
  data:
    nodes: 3000  # planted
    name: 'quoted'
    smoke: {nodes: 300, edges: 4}
    encoder:
      hidden: 16  # outputs
      smoke: {hidden: 4}
    layers:
      - 1
      - 2
"""


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(FILE)
    return path


def test_writing_nothing_changes_nothing(params):
    write_with_settings(params, params, {})
    assert params.read_text() == FILE


def test_a_setting_takes_effect_and_comments_stay(params):
    write_with_settings(params, params, {"bes.data.nodes": 500})
    text = params.read_text()
    for comment in ("# every parameter", "# one of three", "# the graph", "# planted", "# outputs"):
        assert comment in text
    assert settings.block_of(settings.read(params), "bes", "data")["nodes"] == 500
    assert settings.block_of(settings.read(params), "bes", "data")["edges"] == 4
    assert "'quoted'" in text


def test_a_setting_wins_over_inner_and_outer_overrides(params):
    params.write_text(FILE.replace("edges: 4}", "edges: 4, encoder: {hidden: 5, depth: 2}}"))
    write_with_settings(params, params, {"bes.data.encoder.hidden": 7})
    resolved = settings.block_of(settings.read(params), "bes", "data")
    assert resolved["encoder"] == {"hidden": 7, "depth": 2}


def test_a_setting_of_a_whole_group_wins_over_its_overrides(params):
    params.write_text(FILE.replace("edges: 4}", "edges: 4, encoder: {hidden: 5}}"))
    write_with_settings(params, params, {"bes.data.encoder": {"hidden": 9}})
    assert settings.block_of(settings.read(params), "bes", "data")["encoder"] == {"hidden": 9}


def test_another_profiles_overrides_stay(params):
    params.write_text(FILE.replace("profile: smoke", "profile: cpu"))
    write_with_settings(params, params, {"bes.data.nodes": 500})
    everything = settings.read(params)
    assert settings.block_of(everything, "bes", "data")["nodes"] == 500
    assert settings.block_of(everything | {"profile": "smoke"}, "bes", "data")["nodes"] == 300


def test_a_profile_is_written(params, tmp_path):
    target = tmp_path / "side" / "params.yaml"
    write_with_settings(params, target, {"bes.data.nodes": 1}, "paper")
    assert settings.profile_of(settings.read(target)) == "paper"
    assert params.read_text() == FILE


def test_a_new_key_and_a_new_group_may_be_set(params):
    write_with_settings(params, params, {"bes.train.shape.lr": 0.1})
    assert settings.read(params)["bes"]["train"] == {"shape": {"lr": 0.1}}


@pytest.mark.parametrize("key", ["nope.data.nodes", "bes.data.nodes.deep"])
def test_a_setting_without_parents_is_refused_and_nothing_written(params, tmp_path, key):
    with pytest.raises(UserError, match=r"params\.yaml: there is no `"):
        write_with_settings(params, tmp_path / "other.yaml", {key: 1})
    assert not (tmp_path / "other.yaml").exists()
    assert params.read_text() == FILE


@given(
    value=st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.lists(st.integers(), max_size=3)
)
def test_what_is_written_is_what_is_read(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("params")
    (folder / "params.yaml").write_text(FILE)
    write_with_settings(folder / "params.yaml", folder / "out.yaml", {"bes.data.encoder.hidden": value})
    assert settings.block_of(settings.read(folder / "out.yaml"), "bes", "data")["encoder"]["hidden"] == value
