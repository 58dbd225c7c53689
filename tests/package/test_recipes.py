"""Recipes of other packagers, checked by their own tools where a registry has these."""
import ast
import os
import re
import shutil

from harness import ROOT
from shell import TOOLS, VERSION, check

PACKAGING = os.path.join(ROOT, "samples/packaging")


def test_the_dockerfile_passes_hadolint(t):
    assert check(os.path.join(TOOLS, "bin/hadolint"), "--failure-threshold", "style", os.path.join(PACKAGING, "Dockerfile")) == ""


def test_the_dockerfile_installs_what_the_build_needs(t):
    """No container runtime is at hand in a test: its package list and its steps are held against those that are run here."""
    with open(os.path.join(PACKAGING, "Dockerfile")) as f:
        text = f.read()
    setup = check("bash", "-c", f'. {ROOT}/samples/setup; echo "${{build_packages[@]}}"').split()
    installed = set(re.search(r"--no-install-recommends (.*?)&&", text, re.S)[1].replace("\\\n", " ").split())
    page = "".join(open(os.path.join(ROOT, script)).read() for script in ("web/build", "wasm/build"))
    needed = set(setup).union(*(line.split() for line in re.findall(r"debian_packages ([a-z].*)", page)))
    assert needed <= installed, f"the Dockerfile lacks {sorted(needed - installed)}"
    assert "RUN web/build" in text and "cmake --preset package" in text and "cpack -G DEB" in text


def test_the_image_has_what_addresses_need(t):
    """The package only recommends libcurl, and libcurl the certificates, which --no-install-recommends leaves out."""
    with open(os.path.join(PACKAGING, "Dockerfile")) as f:
        image = f.read().rpartition("\nFROM ")[2]
    with open(os.path.join(ROOT, "native/package/debian.cmake")) as f:
        recommended = re.search(r"CPACK_DEBIAN_TESSERA_PACKAGE_RECOMMENDS ([^)]+)\)", f.read())[1].split()
    assert recommended and not {*recommended, "ca-certificates"} - set(image.split()), image


def source_tree(t):
    """What a packager has after web/build: the files of the repository without samples, which no package needs."""
    tree = t.at("source")
    shutil.copytree(ROOT, tree, ignore=lambda directory, names: [n for n in names if n in ("build", ".local", ".git", "node_modules", "checkpoints", "__pycache__")])
    return tree


def test_the_conda_recipe_renders_builds_and_passes_its_tests(t):
    """By rattler-build, which lets patchelf tell libtessera-live where libtessera is. No channel of conda packages is needed: requirements
    are rendered, then this machine's are used."""
    out = check(os.path.join(TOOLS, "bin/python"), os.path.join(ROOT, "tests/package/conda_build.py"), os.path.join(PACKAGING, "conda/recipe.yaml"),
                source_tree(t), t.at("out"), env={**os.environ, "PATH": f"{os.path.join(TOOLS, 'bin')}:{os.environ['PATH']}", "HOME": t.scratch, "CMAKE_BUILD_PARALLEL_LEVEL": "2"})
    assert f"rendered: tessera-checkpoint {VERSION}\n" in out and re.search(f"built: tessera-checkpoint {VERSION} .*tessera-checkpoint-{VERSION}-.*[.]conda", out), out[-2000:]


def test_the_spack_recipe_names_what_the_build_has(t):
    """Spack is in no registry (it is cloned from its repository), so that its own audit cannot run here: the recipe must be
    Python, derive from CMakePackage, and its CMake options and dependencies must be those of the build."""
    with open(os.path.join(PACKAGING, "spack/tessera-checkpoint/package.py")) as f:
        tree = ast.parse(f.read())
    package = next(n for n in tree.body if isinstance(n, ast.ClassDef))
    assert package.name == "TesseraCheckpoint" and [b.id for b in package.bases] == ["CMakePackage"] and ast.get_docstring(package)
    calls = [n for n in ast.walk(package) if isinstance(n, ast.Call)]
    options = {c.args[0].value for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr.startswith("define")}
    files = [os.path.join(d, f) for d, _, names in os.walk(ROOT) if "/build" not in d and "/.local" not in d for f in names if f == "CMakeLists.txt"]
    text = "".join(open(f).read() for f in files)
    for option in options:
        assert re.search(rf"(option|set)\({option}\b", text), f"the build has no option {option}"
    variants = {c.args[0].value for c in calls if isinstance(c.func, ast.Name) and c.func.id == "variant"}
    used = {c.args[1].value for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "define_from_variant"}
    assert used <= variants == {"mpi", "cuda"}
    depends = {re.split("@", c.args[0].value)[0] for c in calls if isinstance(c.func, ast.Name) and c.func.id == "depends_on"}
    assert {"cjson", "isa-l", "openssl", "xxhash", "zstd", "cmake", "c", "pkgconfig"} <= depends
