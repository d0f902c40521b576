"""Parameters: `params.yaml`, its three profiles, and the typed model of each stage.

A block may hold, at any depth, an override named like a profile; it stands beside what it overrides:

    data:
      nodes: 3000
      smoke: {nodes: 300}
"""

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import UserError
from tasks.files import atomic_writer
from tasks.paper import STAGES

if TYPE_CHECKING:
    from pydantic import BaseModel

PROFILES = ("smoke", "cpu", "paper")


def read(path: Path) -> dict[str, Any]:
    """All of a params file. Raises UserError if it is missing or is not a YAML mapping."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        loaded = YAML(typ="safe").load(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: it holds the parameters of every stage") from None
    except YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise UserError(f"{path.name}{line}: not valid YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path.name}: a mapping with `profile` and one section per paper is wanted")
    return loaded


def profile_of(everything: dict[str, Any], file: str = "params.yaml") -> str:
    """The profile that a params file selects. Raises UserError for an unknown one."""
    profile = everything.get("profile", "cpu")
    if profile not in PROFILES:
        raise UserError(f"{file}, profile: {profile!r} is not one of {', '.join(PROFILES)}")
    return profile


def merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """`override` laid over `base`: mappings key by key, everything else (lists too) replaced."""
    merged = dict(base)
    for key, value in override.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else copy.deepcopy(value)
    return merged


def resolve(block: dict[str, Any], profile: str) -> dict[str, Any]:
    """A block with its profile's overrides applied and all override groups removed.

    An outer override wins over an inner one: it is the more deliberate."""
    plain = {
        key: resolve(value, profile) if isinstance(value, dict) else value
        for key, value in block.items()
        if key not in PROFILES
    }
    override = block.get(profile)
    if override is None:
        return plain
    if not isinstance(override, dict):
        raise UserError(f"params.yaml: the override `{profile}` holds {override!r}, a mapping is wanted")
    return merge(plain, resolve(override, profile))


def block_of(everything: dict[str, Any], slug: str, stage: str, file: str = "params.yaml") -> dict[str, Any]:
    """The resolved but unchecked parameters of one stage."""
    profile = profile_of(everything, file)
    section = everything.get(slug)
    if not isinstance(section, dict):
        raise UserError(f"{file}: there is no section `{slug}`; it holds one block per stage")
    for key in section:
        if key not in STAGES:
            raise UserError(f"{file}, {slug}.{key} is no stage: a section holds {', '.join(STAGES)}")
    block = section.get(stage) or {}
    if not isinstance(block, dict):
        raise UserError(f"{file}, {slug}.{stage}: {block!r} is not a mapping of parameters")
    return resolve(block, profile)


def validate(model: "type[BaseModel]", block: dict[str, Any], where: str) -> "BaseModel":
    """`block` as `model`. Raises UserError that names the key (`where` is the file and the block) and says what is wanted."""
    from pydantic import ValidationError

    try:
        return model.model_validate(block)
    except ValidationError as error:
        problems = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                group = _group_at(model, item["loc"][:-1])
                known = f"; known keys: {', '.join(group.model_fields)}" if group else ""
                problems.append(f"{where}.{key} is not a parameter{known}")
            elif item["type"] == "missing":
                problems.append(f"{where}.{key} is missing")
            else:
                problems.append(f"{where}.{key} is {item['input']!r}: {_lower_first(item['msg'])}")
        raise UserError("; ".join(problems)) from None


def _group_at(model: "type[BaseModel]", location: tuple) -> "type[BaseModel] | None":
    from pydantic import BaseModel

    for part in location:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        model = annotation
    return model


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def parse_setting(setting: str) -> tuple[list[str], Any]:
    """`bes.train.shape.lr=1e-3` as a path of keys and a YAML value. Raises UserError for anything else."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    key, equals, value = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"--set {setting}: write key=value, for example train.epochs=20")
    try:
        return parts, YAML(typ="safe").load(value) if value.strip() else None
    except YAMLError:
        raise UserError(f"--set {setting}: the value {value!r} is not valid YAML") from None


def write_with_settings(source: Path, target: Path, settings: dict[str, Any], profile: str | None = None) -> None:
    """Copy a params file with `settings` ({"slug.stage.key": value}) and `profile` put in; comments are kept.

    A setting also removes the present profile's own override of that key, which would otherwise win.
    Raises UserError if a key's parents do not exist."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(source)
    if profile is not None:
        document["profile"] = profile
    active = profile_of(document, source.name)
    for key, value in settings.items():
        parts = key.split(".")
        _set(document, parts, value, active, source.name)
    with atomic_writer(target) as stream:
        yaml.dump(document, stream)


def _set(document: dict, parts: list[str], value: Any, profile: str, file: str) -> None:
    node = document
    for depth, part in enumerate(parts[:-1]):
        if node.get(part) is None and depth >= 1:
            node[part] = {}
        child = node.get(part)
        if not isinstance(child, dict):
            raise UserError(f"{file}: there is no `{'.'.join(parts[: depth + 1])}` to set {'.'.join(parts)} in")
        node = child
    node[parts[-1]] = value
    _drop_overrides(document, parts, profile)


def _drop_overrides(document: dict, parts: list[str], profile: str) -> None:
    """Remove every `...<profile>...` override that spells the same key."""
    node = document
    for depth in range(len(parts)):
        override = node.get(profile) if isinstance(node, dict) and depth > 0 else None
        rest = parts[depth:]
        while isinstance(override, dict) and len(rest) > 1:
            override, rest = override.get(rest[0]), rest[1:]
        if isinstance(override, dict):
            override.pop(rest[0], None)
        node = node.get(parts[depth]) if isinstance(node, dict) else None
