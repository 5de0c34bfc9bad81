// SPDX-License-Identifier: Apache-2.0
// A package of any bytes: its manifest is refused or laid out, and nothing is made outside of its
// folder, also of one that nobody has checked. No link of a checked one leads out.
//
// The first byte chooses whether the rest is a message, a list of entries in text (kind, path and
// link, a line each), or patterns of .skeinignore with a path behind the last line.
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/package_scan.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

using namespace skein;
using namespace skein::cluster;
namespace fs = std::filesystem;

namespace {

void claim(bool is_so) {
    if (!is_so) std::abort();
}

/// home/job is where packages are laid out; there is nothing else.
struct place {
    std::string base = (fs::temp_directory_path() / "skein-fuzz-XXXXXX").string();
    place() {
        claim(::mkdtemp(base.data()) != nullptr);
        base = fs::canonical(base);
        fs::create_directories(base + "/home");
    }
    ~place() { fs::remove_all(base); }
    place(const place&) = delete;
    place& operator=(const place&) = delete;
    [[nodiscard]] std::string job() const { return base + "/home/job"; }

    void check_around() const {
        for (const auto& each : fs::directory_iterator(base)) claim(each.path() == base + "/home");
        for (const auto& each : fs::directory_iterator(base + "/home"))
            claim(each.path() == job() && !each.is_symlink());
    }
    void check_links() const {
        for (const auto& each : fs::recursive_directory_iterator(job())) {
            std::error_code dangles;
            const auto to = fs::canonical(each.path(), dangles);
            if (!dangles) claim(to == job() || to.string().starts_with(job() + "/"));
        }
    }
};

std::string_view line_of(std::string_view& text) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    return line;
}

package_manifest from_text(std::string_view text, bool in_order) {
    package_manifest out;
    while (!text.empty() && out.entries.size() < 1000) {
        package_entry e;
        e.kind = static_cast<std::uint8_t>(text.front() & 3);
        text.remove_prefix(1);
        e.path = line_of(text);
        if (e.kind == 1) e.link_to = line_of(text);
        if (e.kind == 0) e.digest = sha256_of({});
        e.mode = e.kind == 1 ? 0 : 0600;
        out.entries.push_back(std::move(e));
    }
    const auto less = [](const auto& a, const auto& b) { return path_less(a.path, b.path); };
    if (in_order) std::sort(out.entries.begin(), out.entries.end(), less);
    return out;
}

unique_fd zeros(const package_entry& e) {
    unique_fd file(::memfd_create("content", MFD_CLOEXEC));
    claim(::ftruncate(file.get(), static_cast<off_t>(e.size)) == 0);
    return file;
}

/// A folder that was laid out is the package again, but for what a scan leaves out.
void check_scan(const package_manifest& what, const std::string& folder) {
    for (const auto& e : what.entries)
        if (e.path.find(".git") != std::string::npos || e.path == ".skeinignore") return;
    const auto again = scan_folder(folder);
    claim(again.entries.size() == what.entries.size());
    for (std::size_t i = 0; i < again.entries.size(); ++i) {
        claim(again.entries[i].path == what.entries[i].path);
        claim(again.entries[i].link_to == what.entries[i].link_to);
    }
}

void lay_out(const package_manifest& what) {
    static const place here;
    std::uint64_t room = std::uint64_t{64} << 10;
    for (const auto& e : what.entries) {
        if (e.size > room) return;
        room -= e.size;
    }
    const bool is_good = check_package(what).has_value();
    bool is_made = false;
    try {
        cluster::detail::lay_out_tree(what, here.job(), zeros, {});
        is_made = true;
    } catch (const error&) {}
    here.check_around();
    claim(is_made == fs::exists(here.job()));
    if (is_good) {
        claim(is_made);
        here.check_links();
        check_scan(what, here.job());
    }
    fs::remove_all(here.job());
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 1) return 0;
    const auto rest = byte_span(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
    if (data[0] % 4 == 3) {
        const auto text = as_text(rest);
        const auto last = text.rfind('\n');
        const auto path = text.substr(last == std::string_view::npos ? 0 : last + 1);
        cluster::detail::ignore_rules rules(text.substr(0, text.size() - path.size()));
        const bool out = rules.leaves_out(path, false);
        claim(out == rules.leaves_out(path, false));
        if (cluster::detail::check_result_pattern(path) && !path.ends_with('/'))
            claim(check_package_path(path).has_value());
        for (const auto& one : cluster::detail::read_result_patterns(text))
            claim(!one.starts_with('/') && one.find("//") == one.npos);
        return 0;
    }
    package_manifest what;
    if (data[0] % 4 == 0) {
        wire::limits limits;
        limits.max_memory = package_bounds{}.memory();
        auto read = wire::decode<package_manifest>(rest, limits);
        if (!read) return 0;
        what = std::move(*read);
        claim(wire::decode<package_manifest>(wire::encode(what)).value() == what);
    } else {
        what = from_text(as_text(rest), data[0] % 4 == 1);
    }
    claim(what.id().size() == 64);
    try { // as results of a job: files alone
        for (const auto& one : cluster::detail::read_set(wire::encode(what)).entries)
            claim(one.kind == 0 && !one.path.starts_with('/'));
    } catch (const error&) {}
    lay_out(what);
    return 0;
}
