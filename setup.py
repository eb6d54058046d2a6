"""Puts the SQLite file of the packaged tuning results into wheels; all else is said by pyproject.toml."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DATABASE = Path(__file__).parent / "tuning_db"


class BuildWithSeeds(build_py):
    """Copies the package, but for the JSON that the results are made from, and writes the file that is read."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a source tree makes the file in the cache
            return
        spec = spec_from_file_location("seed_file", DATABASE / "seed_file.py")
        seed_file = module_from_spec(spec)
        spec.loader.exec_module(seed_file)
        target = Path(self.build_lib) / "sparsegen" / "tuning_db" / "seeds" / seed_file.NAME
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        seed_file.write(seed_file.seed_documents(DATABASE / "seeds"), target)


setup(cmdclass={"build_py": BuildWithSeeds})
