// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small folders, sets and files for the tests of what jobs leave behind.

#include <skein/cluster/package.hpp>
#include <skein/cluster/run_shelf.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sha256.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace results_support {

using namespace skein;
using namespace skein::cluster;
namespace fs = std::filesystem;

inline void write_file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
}
inline std::string text_of(const std::string& path) {
    std::ifstream from(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(from), {}};
}

inline package_entry entry(const std::string& path, const std::string& text) {
    package_entry out;
    out.path = path;
    out.mode = 0644;
    out.size = text.size();
    out.digest = sha256_of(as_bytes(text));
    return out;
}

inline package_manifest one_file(const std::string& path, const std::string& text) {
    package_manifest out;
    out.entries.push_back(entry(path, text));
    return out;
}

inline stored_set set_of(const std::string& name, const std::string& id) {
    stored_set out;
    out.name = name;
    out.id = id;
    return out;
}

/// Keeps a set of one file.
inline std::string keep(run_shelf& on, const std::string& key, const std::string& name,
                        const std::string& text, bool holds) {
    const auto files = one_file("a", text);
    const auto pin = on.files().pin(files);
    if (!on.files().has(files.entries[0].digest))
        on.files().put(files.entries[0].digest, as_bytes(text));
    on.commit(key, set_of(name, pin.id()), holds);
    return pin.id();
}

template <class Work>
errc fault_of(Work work) {
    try {
        work();
    } catch (const error& why) {
        return why.code();
    }
    return errc{};
}

} // namespace results_support
