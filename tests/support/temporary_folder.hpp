// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of its own that goes away with the test, also when the test fails.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include <cstdlib>
#include <sys/mount.h>

namespace skein::test {

struct temporary_folder {
    std::string path = (std::filesystem::temp_directory_path() / "skein-test-XXXXXX").string();
    bool mounted = false;

    temporary_folder() {
        if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp " + path);
    }
    ~temporary_folder() {
        if (mounted) ::umount(path.c_str());
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    temporary_folder(const temporary_folder&) = delete;
    temporary_folder& operator=(const temporary_folder&) = delete;

    [[nodiscard]] std::string operator/(const std::string& name) const { return path + "/" + name; }
    /// The bytes of a file in it; empty when there is none.
    [[nodiscard]] std::string text(const std::string& name) const {
        std::ifstream in(*this / name, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }

    /// Puts a small file system in memory there, e.g. "size=256k"; false without root.
    bool mount_tmpfs(const char* options) {
        return mounted = ::mount("tmpfs", path.c_str(), "tmpfs", 0, options) == 0;
    }
};

} // namespace skein::test
