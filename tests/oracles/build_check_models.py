"""What `planner/check/data/models.toml` says of transformers' model types, read from the installed transformers.

`python tests/oracles/build_check_models.py --write` writes `blocks`, `layers`, `no_width` and `width_in_text_config`
anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TABLE = Path(__file__).parents[2] / "planner" / "check" / "data" / "models.toml"
CLASS = re.compile(r"^class (\w+)\(nn\.Module\):\n(.*?)(?=^class |^def |^@|\Z)", re.MULTILINE | re.DOTALL)

NEVER_SPLIT = re.compile(r"_no_split_modules\s*(?::[^=\n]*)?=\s*\[(.*?)\]", re.DOTALL)


def routing_blocks() -> dict[str, list[str]]:
    """Modules that hold a router and experts, by the folder of their family; whole layers are left out."""
    import transformers

    blocks: dict[str, list[str]] = {}
    for file in sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        for name, body in CLASS.findall(file.read_text(encoding="utf-8")):
            routes = re.search(r"self\.(gate|router)\s*=", body) and re.search(r"self\.experts\s*=", body)
            if (routes and not name.endswith("Layer")) or name == "AriaTextMoELayer":
                path = f"transformers.models.{file.parent.name}.{file.stem}.{name}"
                blocks.setdefault(file.parent.name, []).append(path)
    return blocks


def layer_classes() -> dict[str, list[str]]:
    """Modules that are never split, by the folder of their family: what an FSDP wrap policy names."""
    import transformers

    layers: dict[str, list[str]] = {}
    for file in sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        for names in NEVER_SPLIT.findall(file.read_text(encoding="utf-8")):
            known = layers.setdefault(file.parent.name, [])
            known += [name for name in dict.fromkeys(re.findall(r"\w+", names)) if name not in known]
    return {family: names for family, names in layers.items() if names}


def types_without_width() -> tuple[list[str], list[str]]:
    """Model types whose config has no width at all, and those that have it in `text_config` only."""
    from transformers import CONFIG_MAPPING

    nowhere, inside = [], []
    for name in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # a config that cannot be made without arguments
            if "encoder-decoder" in name:
                nowhere.append(name)
            continue
        if hasattr(config, "hidden_size") or hasattr(config, "hidden_sizes"):
            continue
        text = getattr(config, "text_config", None)
        (inside if hasattr(text, "hidden_size") or hasattr(text, "hidden_sizes") else nowhere).append(name)
    return sorted(set(nowhere)), sorted(set(inside))


def tables() -> str:
    """The four tables as TOML."""
    nowhere, inside = types_without_width()
    lines = [
        _row("no_width", nowhere),
        _row("width_in_text_config", inside),
        "",
        "[blocks]",
        *(_row(family, names) for family, names in routing_blocks().items()),
        "",
        "[layers]",
        *(_row(family, names) for family, names in layer_classes().items()),
    ]
    return "\n".join(lines) + "\n"


def _row(key: str, names: list[str]) -> str:
    return f"{key} = [{', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}]"


def main() -> None:
    """Print the tables, or write them into the file between its head and its names."""
    if "--write" in sys.argv:
        text = TABLE.read_text(encoding="utf-8")
        head = text[: text.index('transformers = "')]
        names = text[text.index("[[name]]") :]
        import transformers

        release = ".".join(transformers.__version__.split(".")[:2])
        TABLE.write_text(f'{head}transformers = "{release}"\n{tables()}\n{names}', encoding="utf-8")
    else:
        print(tables())


if __name__ == "__main__":
    main()
