"""How the nodes come into ComfyUI: from a clone, by the registry's metadata, and not into one that is too old."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tokenmerge
from tokenmerge.errors import UnsupportedHostError
from tokenmerge.integrations.comfyui import OLDEST, comfy_entrypoint

ROOT = Path(__file__).parents[2]
# As ComfyUI imports a folder of custom_nodes, in a Python that has no tokenmerge.
IMPORT = """
import importlib.util, sys
from pathlib import Path
sys.path[:] = [path for path in sys.path if not (Path(path) / "tokenmerge" / "__init__.py").exists()]
spec = importlib.util.spec_from_file_location("nodes", Path(sys.argv[1]) / "__init__.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import tokenmerge
print(tokenmerge.__file__, module.WEB_DIRECTORY, callable(module.comfy_entrypoint))
"""


def test_a_clone_is_enough(tmp_path: Path) -> None:
    clone = tmp_path / "custom_nodes" / "tokenmerge"
    clone.mkdir(parents=True)
    for name in ("__init__.py", "src"):
        (clone / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, clone], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    found, web, has_entry = done.stdout.split()
    assert found == str(clone / "src/tokenmerge/__init__.py")
    assert (clone / web).is_dir()
    assert has_entry == "True"


def test_the_registry_has_what_it_asks_for() -> None:
    """ComfyUI's registry and managers read [tool.comfy] and install requirements.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    comfy = project["tool"]["comfy"]
    assert comfy["PublisherId"]
    assert comfy["DisplayName"] == "Token Merge"
    assert comfy["requires-comfyui"] == f">={OLDEST}"
    # A version that is not in [project] is looked for as text, in a file that is named here.
    assert project["project"]["dynamic"] == ["version"]
    source = (ROOT / comfy["version"]["path"]).read_text()
    assert re.findall(r'^__version__ = "(\d+\.\d+\.\d+)"$', source, re.MULTILINE) == [tokenmerge.__version__]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    asked = {line for line in lines if line and not line.startswith("#")}
    assert asked <= {requirement.split(" ")[0] for requirement in project["project"]["dependencies"]}


@pytest.mark.parametrize("has", ["nothing", "the schema of nodes alone"])
def test_a_comfyui_that_is_too_old_is_refused_in_a_sentence(
    has: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has != "nothing":  # wrappers around samplers came later
        for package, content in (("comfy_api", ""), ("comfy_api/latest", "ComfyExtension = io = ui = object()")):
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedHostError, match=f"this ComfyUI is too old .* they need {OLDEST} or newer"):
        comfy_entrypoint()
