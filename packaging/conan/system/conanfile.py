# SPDX-License-Identifier: Apache-2.0
# Stands for a package of the index where the system's own headers are to be used, under each name that skein requires:
#   for p in asio fmt pfr nlohmann_json libjpeg-turbo libpng libcurl; do conan export packaging/conan/system --name=$p --version=system; done
from conan import ConanFile


class system(ConanFile):
    package_type = "header-library"

    def package_info(self):
        self.cpp_info.includedirs, self.cpp_info.bindirs, self.cpp_info.libdirs = [], [], []
        self.cpp_info.system_libs = {"fmt": ["fmt"], "libjpeg-turbo": ["jpeg"], "libpng": ["png"], "libcurl": ["curl"]}.get(self.name, [])
