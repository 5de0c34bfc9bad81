# SPDX-License-Identifier: Apache-2.0
"""The parts of a release, see scripts/release --help."""
import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ["source", "single_include", "deb", "site", "programs"]

# What a user's program contains or links besides skein: name, licence, where it comes from.
DEPENDENCIES = [
    ("asio", "BSL-1.0", "https://think-async.com/Asio/"),
    ("fmt", "MIT", "https://fmt.dev/"),
    ("boost-pfr", "BSL-1.0", "https://www.boost.org/libs/pfr/"),
    ("nlohmann-json", "MIT", "https://json.nlohmann.me/"),
    ("cli11", "BSD-3-Clause", "https://github.com/CLIUtils/CLI11"),
    ("libjpeg-turbo", "IJG AND BSD-3-Clause AND Zlib", "https://libjpeg-turbo.org/"),
    ("libpng", "libpng-2.0", "https://www.libpng.org/"),
    ("libcurl", "curl", "https://curl.se/libcurl/"),
    ("libtorch", "BSD-3-Clause", "https://pytorch.org/"),
]


def fail(what):
    sys.exit(f"error: {what}")


def say(what):
    print(f"-- {what}", flush=True)


def run(*command, **more):
    done = subprocess.run(command, cwd=more.pop("cwd", ROOT), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def git(*arguments):
    return run("git", *arguments).strip()


# ---- versions ------------------------------------------------------------------------------------

def version_of(root):
    """Of config.hpp; every other place has to say the same."""
    text = (root / "include/skein/core/config.hpp").read_text()
    numbers = [re.search(rf"#define SKEIN_VERSION_{part} (\d+)", text).group(1)
               for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(numbers)


def version_errors(root):
    version = version_of(root)
    found = []
    config = (root / "include/skein/core/config.hpp").read_text()
    spelled = re.search(r'#define SKEIN_VERSION_STRING "([^"]+)"', config)
    found.append(("config.hpp, SKEIN_VERSION_STRING", spelled.group(1) if spelled else "nothing"))
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.M)
    found.append(("CHANGELOG.md, newest section", newest.group(1) if newest else "nothing"))
    port = root / "packaging/vcpkg/ports/skein/vcpkg.json"
    found.append(("vcpkg.json", json.loads(port.read_text()).get("version-semver", "nothing")
                  if port.exists() else "nothing"))
    return [f"{where} says {said}, config.hpp {version}" for where, said in found if said != version]


# ---- archives ------------------------------------------------------------------------------------

def pack(target, files, when):
    """A .tar.gz whose bytes depend on names and contents alone. files: (name, path or bytes), in any order."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for name, content in sorted(files, key=lambda f: f[0]):
            data = content if isinstance(content, bytes) else content.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), when
            runs = not isinstance(content, bytes) and os.access(content, os.X_OK)
            entry.mode = 0o755 if runs else 0o644
            out.addfile(entry, io.BytesIO(data))
    with open(target, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as zipped:
        zipped.write(plain.getvalue())


def under(folder, prefix):
    return [(f"{prefix}/{p.relative_to(folder)}", p) for p in sorted(folder.rglob("*")) if p.is_file()]


class Release:
    def __init__(self, tree, files, out, named):
        self.tree, self.files, self.out = tree, files, out  # the commit's files, their names, where the parts go
        self.named = named  # the programs that are made; none: all
        self.version = version_of(tree)
        self.when = int(git("log", "-1", "--format=%ct"))
        self.environment = dict(os.environ, SOURCE_DATE_EPOCH=str(self.when), LC_ALL="C", TZ="UTC",
                                CCACHE_DISABLE="1")

    def source(self):
        base = f"skein-{self.version}"
        pack(self.out / f"{base}.tar.gz", [(f"{base}/{f}", self.tree / f) for f in self.files], self.when)

    def single_include(self):
        base = f"skein-single-include-{self.version}"
        files = under(self.tree / "single_include", f"{base}/include")
        pack(self.out / f"{base}.tar.gz", files + [(f"{base}/LICENSE", self.tree / "LICENSE")], self.when)

    def deb(self):
        build = self.tree / "build-deb"
        run("cmake", "-S", self.tree, "-B", build, "-DSKEIN_DEVELOPER_MODE=OFF", "-DSKEIN_TORCH=OFF",
            "-DSKEIN_COMPILED=OFF", "-DSKEIN_MODULE=OFF", "-DCMAKE_INSTALL_PREFIX=/usr", env=self.environment)
        run("cpack", cwd=build, env=self.environment)
        made = sorted(build.glob("*.deb"))
        if len(made) != 1:
            fail(f"cpack made {len(made)} packages in {build}, not one")
        shutil.copyfile(made[0], self.out / f"libskein-dev_{self.version}_all.deb")
        shutil.rmtree(build)

    def site(self):
        venv = Path(os.environ.get("SKEIN_BUILD_ROOT", ROOT / "build")) / "docs/venv"
        run("scripts/docs", cwd=self.tree,
            env=dict(self.environment, SKEIN_BUILD_ROOT=str(self.tree / "build"), SKEIN_DOCS_VENV=str(venv)))
        base = f"skein-docs-{self.version}"
        files = [f for f in under(self.tree / "build/docs/site", base) if not f[0].endswith("/.buildinfo")]
        pack(self.out / f"{base}.tar.gz", files, self.when)

    def programs(self):
        made = self.tree / "build/programs"
        run("scripts/programs", "--output", made, *self.named, cwd=self.tree, env=self.environment)
        for folder in sorted(p for p in made.iterdir() if p.is_dir()):
            base = f"skein-programs-{self.version}-{folder.name}"
            files = under(folder, base) + [(f"{base}/LICENSE", self.tree / "LICENSE")]
            pack(self.out / f"{base}.tar.gz", files, self.when)

    # ---- what describes them -----------------------------------------------------------------

    def spdx(self):
        """SPDX 2.3: the package, its dependencies, and every file of the release with its checksums."""
        created = subprocess.run(["date", "-u", "-d", f"@{self.when}", "+%Y-%m-%dT%H:%M:%SZ"], text=True,
                                 stdout=subprocess.PIPE, check=True).stdout.strip()
        files = []
        for number, path in enumerate(sorted(p for p in self.out.iterdir() if p.is_file()), 1):
            data = path.read_bytes()
            files.append({
                "SPDXID": f"SPDXRef-File-{number}", "fileName": f"./{path.name}",
                "checksums": [{"algorithm": a.upper(), "checksumValue": hashlib.new(a, data).hexdigest()}
                              for a in ("sha1", "sha256")],
                "licenseConcluded": "Apache-2.0", "licenseInfoInFiles": ["Apache-2.0"],
                "copyrightText": "2026 skein developers"})
        verification = hashlib.sha1("".join(sorted(
            f["checksums"][0]["checksumValue"] for f in files)).encode()).hexdigest()
        package = {
            "SPDXID": "SPDXRef-Package-skein", "name": "skein", "versionInfo": self.version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
            "packageVerificationCode": {"packageVerificationCodeValue": verification},
            "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
            "licenseInfoFromFiles": ["Apache-2.0"], "copyrightText": "2026 skein developers"}
        others = [{
            "SPDXID": f"SPDXRef-Package-{name}", "name": name, "downloadLocation": "NOASSERTION",
            "homepage": home, "filesAnalyzed": False, "licenseConcluded": licence,
            "licenseDeclared": licence, "copyrightText": "NOASSERTION"}
            for name, licence, home in DEPENDENCIES]
        relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                      "relatedSpdxElement": package["SPDXID"]}]
        relations += [{"spdxElementId": package["SPDXID"], "relationshipType": "CONTAINS",
                       "relatedSpdxElement": f["SPDXID"]} for f in files]
        relations += [{"spdxElementId": package["SPDXID"], "relationshipType": "DEPENDS_ON",
                       "relatedSpdxElement": o["SPDXID"]} for o in others]
        document = {
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"skein-{self.version}",
            "documentNamespace": f"urn:skein:spdx:{self.version}:{git('rev-parse', 'HEAD')}",
            "creationInfo": {"created": created, "creators": ["Tool: skein-scripts-release"]},
            "packages": [package] + others, "files": files, "relationships": relations}
        (self.out / f"skein-{self.version}.spdx.json").write_text(json.dumps(document, indent=2) + "\n")

    def sums(self):
        lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n"
                 for p in sorted(self.out.iterdir()) if p.name != "SHA256SUMS"]
        (self.out / "SHA256SUMS").write_text("".join(lines))


def check_generated(tree):
    """What scripts/check --write makes is what is committed."""
    run("scripts/check", "mirror", "single_include", "docs", cwd=tree)


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--tag", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--programs", nargs="+", default=[])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if options.tag and (options.only or options.programs):
        fail("--tag wants all parts, with all programs")
    if git("status", "--porcelain") and options.tag:
        fail("files are not committed: a tag would not say what was released")

    options.output.mkdir(parents=True, exist_ok=True)
    for old in options.output.iterdir():
        if not re.match(r"(lib)?skein[-_]|SHA256SUMS$", old.name):
            fail(f"{options.output} holds {old.name}, which is no part of a release: give another folder")
    with tempfile.TemporaryDirectory(prefix="skein-release-") as folder:
        # At a path of the same length and name every time: what is built there may spell it.
        tree = Path(folder) / "skein"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(tree)
            names = [f.name for f in files.getmembers() if f.isfile()]
        wrong = version_errors(tree)
        if wrong:
            fail("versions differ:\n  " + "\n  ".join(wrong))
        unreleased = re.search(r"^## \S+ *\((unreleased)\)", (tree / "CHANGELOG.md").read_text(), re.M)
        if options.tag and unreleased:
            fail("the newest section of CHANGELOG.md is called unreleased: give it a date")
        check_generated(tree)
        for old in options.output.iterdir():  # nothing is wrong: the parts of before may go
            old.unlink()
        release = Release(tree, sorted(names), options.output, options.programs)
        for part in [p for p in PARTS if p in (options.only or PARTS)]:
            say(f"{part}")
            getattr(release, part)()
        release.spdx()
        release.sums()
    print((options.output / "SHA256SUMS").read_text(), end="")
    if options.tag:
        git("tag", "-a", f"v{release.version}", "-m", f"skein {release.version}")
        say(f"tagged v{release.version}; nothing was pushed")
    else:
        left = [p for p in PARTS if options.only and p not in options.only]
        say(f"a dry run of skein {release.version} in {options.output}"
            + (f"; left out: {' '.join(left)}" if left else "")
            + (f"; programs: {' '.join(options.programs)} alone" if options.programs else ""))


if __name__ == "__main__":
    main()
