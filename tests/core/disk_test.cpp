// SPDX-License-Identifier: Apache-2.0
#include <skein/core/disk.hpp>

#include <catch2/catch_test_macros.hpp>

#include <map>

using skein::errc;
using skein::error;
using skein::open_mode;
using skein::result;

namespace {
/// The least a disk can be: files in a map, and a switch that makes writes fail.
class memory_disk final : public skein::disk {
public:
    std::map<std::string, skein::byte_buffer> files;
    std::vector<std::string> steps;
    bool is_full = false;

    class handle final : public skein::file {
    public:
        handle(memory_disk& disk, std::string path) : disk_(disk), path_(std::move(path)) {}
        result<std::size_t> read_at(std::uint64_t offset, skein::mut_byte_span into) override {
            const auto& all = disk_.files[path_];
            const auto n = std::min<std::size_t>(
                into.size(), all.size() - std::min<std::size_t>(all.size(), offset));
            std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(offset), n, into.begin());
            return n;
        }
        result<void> write_at(std::uint64_t offset, skein::byte_span bytes) override {
            if (disk_.is_full) return error(errc::disk_full, "write " + path_ + ": no space");
            auto& all = disk_.files[path_];
            all.resize(std::max<std::size_t>(all.size(), offset + bytes.size()));
            std::copy(bytes.begin(), bytes.end(),
                      all.begin() + static_cast<std::ptrdiff_t>(offset));
            return {};
        }
        result<void> append(skein::byte_span bytes) override {
            return write_at(disk_.files[path_].size(), bytes);
        }
        result<std::uint64_t> size() override { return std::uint64_t{disk_.files[path_].size()}; }
        result<void> truncate(std::uint64_t n) override {
            return disk_.files[path_].resize(n), result<void>();
        }
        result<void> sync() override {
            return disk_.steps.push_back("sync " + path_), result<void>();
        }
        result<void> close() override { return {}; }

    private:
        memory_disk& disk_;
        std::string path_;
    };

    result<std::unique_ptr<skein::file>> open(const std::string& path, open_mode mode) override {
        if (mode == open_mode::read && !files.contains(path)) return error(errc::not_found, path);
        if (mode == open_mode::write) files[path].clear();
        return std::unique_ptr<skein::file>(std::make_unique<handle>(*this, path));
    }
    result<void> rename(const std::string& from, const std::string& to) override {
        steps.push_back("rename " + from + " " + to);
        files[to] = files[from];
        files.erase(from);
        return {};
    }
    result<void> sync_dir(const std::string& path) override {
        steps.push_back("sync_dir " + path);
        return {};
    }
    result<std::vector<skein::dir_entry>> list(const std::string&) override {
        return std::vector<skein::dir_entry>{};
    }
    result<void> remove(const std::string& path) override {
        if (files.erase(path) == 0) return error(errc::not_found, path);
        return {};
    }
    result<void> make_dirs(const std::string&) override { return {}; }
    result<std::uint64_t> free_space(const std::string&) override { return std::uint64_t{1}; }
    result<skein::dir_entry> status(const std::string& path) override {
        if (!files.contains(path)) return error(errc::not_found, path);
        return skein::dir_entry{path, false, files[path].size()};
    }
};
} // namespace

TEST_CASE("replace writes beside, syncs, renames and syncs the folder, in this order") {
    memory_disk disk;
    disk.files["run/m"] = skein::to_buffer("old");
    REQUIRE(disk.replace("run/m", skein::as_bytes("new")));
    CHECK(skein::to_string(disk.files["run/m"]) == "new");
    CHECK(disk.steps ==
          std::vector<std::string>{"sync run/m.tmp", "rename run/m.tmp run/m", "sync_dir run"});
    CHECK(disk.files.size() == 1);
}

TEST_CASE("a replace that fails leaves the old content and no temporary file") {
    memory_disk disk;
    disk.files["run/m"] = skein::to_buffer("old");
    disk.is_full = true;
    const auto done = disk.replace("run/m", skein::as_bytes("new"));
    REQUIRE_FALSE(done);
    CHECK(done.error().code() == errc::disk_full);
    CHECK(skein::to_string(disk.files["run/m"]) == "old");
    CHECK(disk.files.size() == 1);
}

TEST_CASE("read_whole refuses more than its limit") {
    memory_disk disk;
    disk.files["f"] = skein::to_buffer("12345");
    REQUIRE(disk.read_whole("f"));
    const auto refused = disk.read_whole("f", 4);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == errc::too_large);
    CHECK(disk.read_whole("g").error().code() == errc::not_found);
}

TEST_CASE("paths are split and joined") {
    CHECK(skein::parent_path("a/b/c") == "a/b");
    CHECK(skein::parent_path("c") == ".");
    CHECK(skein::parent_path("/c") == "/");
    CHECK(skein::join_path("a", "b") == "a/b");
    CHECK(skein::join_path("a/", "b") == "a/b");
    CHECK(skein::join_path("", "b") == "b");
}
