# SPDX-License-Identifier: Apache-2.0
# The header-only form for Conan 2: conan create packaging/conan --build=missing
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load

required_conan_version = ">=2.1"
OLDEST = {"gcc": "12", "clang": "16"}


class skein(ConanFile):
    name = "skein"
    description = "Tasks, actors and training loops over one transport"
    license = "Apache-2.0"
    topics = ("coroutines", "actors", "distributed", "asio", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True
    options = {"images": [True, False],      # skein::images: JPEG and PNG in data pipelines
               "etcd": [True, False],        # skein::etcd: views of elastic jobs in etcd
               "http": [True, False]}        # skein::http: HTTP servers on streams
    default_options = {"images": False, "etcd": False, "http": False}

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "include", "skein", "core", "config.hpp"))
        self.version = re.search(r'SKEIN_VERSION_STRING "(.*)"', text).group(1)

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("include/*", "LICENSE", "cmake/SkeinCompiler.cmake", "cmake/SkeinPrecompile.cmake", "scripts/check_await.py", "scripts/checks.py", "scripts/layers.toml"):
            copy(self, pattern, root, self.export_sources_folder)

    def requirements(self):
        for package in ("asio/[>=1.22 <2]", "fmt/[>=9.1 <13]", "pfr/[>=2.1 <3]", "nlohmann_json/[>=3.9 <4]"):
            self.requires(package, transitive_headers=True, transitive_libs=True)
        if self.options.images:
            for package in ("libjpeg-turbo/[>=2.1 <4]", "libpng/[>=1.6 <2]"):
                self.requires(package, transitive_headers=True, transitive_libs=True)
        if self.options.etcd:
            self.requires("libcurl/[>=7.74 <9]", transitive_headers=True, transitive_libs=True)
        if self.options.http:
            self.requires("boost/[>=1.81 <2]", transitive_headers=True, transitive_libs=True, options={"header_only": True})

    def validate(self):
        compiler, version = str(self.settings.compiler), str(self.settings.compiler.version)
        if str(self.settings.os) != "Linux":
            raise ConanInvalidConfiguration(f"skein needs Linux, not {self.settings.os}")
        if compiler not in OLDEST or int(version.split(".")[0]) < int(OLDEST[compiler]):
            raise ConanInvalidConfiguration(f"skein needs g++ 12 or clang 16, not {compiler} {version}")
        if self.settings.get_safe("compiler.cppstd"):
            check_min_cppstd(self, 20)

    def package(self):
        # check_await.py lies beside the file that names it.
        at = os.path.join(self.package_folder, "share", "skein")
        copy(self, "*", os.path.join(self.source_folder, "include"), os.path.join(self.package_folder, "include"))
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "Skein*.cmake", os.path.join(self.source_folder, "cmake"), at)
        copy(self, "*", os.path.join(self.source_folder, "scripts"), at)

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "skein")
        self.cpp_info.set_property("cmake_config_version_compat", "SameMinorVersion")
        self.cpp_info.set_property("cmake_build_modules", ["share/skein/SkeinCompiler.cmake", "share/skein/SkeinPrecompile.cmake"])
        for name in ("header_only", "runtime", "core", "sim", *(["images", "images_header_only"] if self.options.images else []),
                     *(["etcd", "etcd_header_only"] if self.options.etcd else []),
                     *(["http", "http_header_only"] if self.options.http else [])):
            part = self.cpp_info.components[name]
            part.set_property("cmake_target_name", f"skein::{name}")
            part.bindirs, part.libdirs = [], []
            if name == "header_only":
                part.requires = ["asio::asio", "fmt::fmt", "pfr::pfr", "nlohmann_json::nlohmann_json"]
                part.defines = ["ASIO_STANDALONE"]
                part.system_libs = ["pthread"]
            else:
                part.includedirs = []
                part.requires = ["header_only", *(["libjpeg-turbo::libjpeg-turbo", "libpng::libpng"] if name.startswith("images") else []),
                                 *(["libcurl::libcurl"] if name.startswith("etcd") else []),
                                 *(["boost::headers"] if name.startswith("http") else [])]
