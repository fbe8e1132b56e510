"""A real local Ray of two workers, one of them killed: the same images and records as a run in one process."""

from __future__ import annotations

import json

import psutil
import pytest
from test_eval_run_folder import hashes, run

from tokenmerge.errors import ModelLoadError
from tokenmerge.eval.engine import Made
from tokenmerge.eval.errors import WorkerError
from tokenmerge.eval.experiment import read_experiment
from tokenmerge.eval.run import make_images
from tokenmerge.eval.run_folder import RunFolder

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this file: it takes seconds to start."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    yield
    ray.shutdown()


def worker_processes() -> list[psutil.Process]:
    """Processes that hold a worker, children of this one."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if process.is_running() and "ray::Worker" in " ".join(process.cmdline())]


@pytest.mark.long
def test_a_killed_worker_loses_nothing(cluster, experiment_file, tmp_path):
    from tokenmerge.eval.ray_engine import RayEngine

    experiment = read_experiment(experiment_file())
    killed = []

    class WithAccident(RayEngine):
        def run(self, work):
            self._workers.append(self._start())
            assert ray.get([worker.cut.remote(["a"]) for worker in self._workers]) == [["a"], ["a"]]
            for count, made in enumerate(super().run(work)):
                assert isinstance(made, Made)
                if count == 3:
                    workers = worker_processes()
                    assert len(workers) == 2
                    workers[0].kill()
                    killed.append(workers[0].pid)
                yield made

    folder = RunFolder(tmp_path / "ray")
    with folder.locked():
        make_images(experiment, folder, lambda settled: WithAccident(settled, workers=2), print)
    assert killed
    run(tmp_path / "local", experiment)
    assert hashes(tmp_path / "ray") == hashes(tmp_path / "local")
    lines = [json.loads(line) for line in (tmp_path / "ray" / "records.jsonl").read_text().splitlines()]
    assert len({(line["variant"], line["id"]) for line in lines}) == len(lines) == 16
    local = json.loads((tmp_path / "local" / "records.jsonl").read_text().splitlines()[0])
    assert lines[0].keys() == local.keys()
    _, alive = psutil.wait_procs(worker_processes(), timeout=60)  # they were asked to go
    assert not alive


@pytest.mark.long
def test_a_model_that_is_not_there_is_an_error_as_it_is_here(cluster, experiment_file, tmp_path):
    from tokenmerge.eval.ray_engine import RayEngine

    experiment = read_experiment(experiment_file(('name = "tiny-random"', 'name = "/no/such/folder"')))
    folder = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(ModelLoadError, match="there is no model folder"):
        make_images(experiment, folder, lambda settled: RayEngine(settled, workers=1), print)


def test_an_address_nobody_answers_at_is_a_sentence(experiment_file, monkeypatch):
    from tokenmerge.eval import ray_engine

    def refuse(**_):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(WorkerError, match=r"Ray at far:1 could not be reached \(nobody there\): check --address"):
        ray_engine.RayEngine(read_experiment(experiment_file()), address="far:1")


@pytest.mark.parametrize(
    ("cluster", "asked", "needs", "count"),
    [
        ({"CPU": 64.0, "GPU": 8.0}, None, {"num_gpus": 1, "num_cpus": 1.0}, 8),
        ({"CPU": 64.0, "GPU": 8.0}, 3, {"num_gpus": 1, "num_cpus": 1.0}, 3),
        ({"CPU": 16.0}, None, {"num_cpus": 4}, 4),
        ({"CPU": 2.0}, None, {"num_cpus": 2}, 1),
        ({"CPU": 2.0}, 2, {"num_cpus": 1}, 2),
        ({"CPU": 2.0}, 3, {"num_cpus": 0.66}, 3),
    ],
)
def test_workers_share_the_cluster(experiment_file, cluster, asked, needs, count):
    from tokenmerge.eval.ray_engine import RayEngine

    engine = RayEngine.__new__(RayEngine)
    engine._experiment = read_experiment(experiment_file())
    assert engine._share_of(cluster, asked) == (needs, count)
