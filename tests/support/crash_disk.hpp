// SPDX-License-Identifier: Apache-2.0
#pragma once
// A disk in memory that can lose power, run full or fail at any operation.
//
// It models what POSIX promises and no more: content is durable after sync() of the file, names are
// durable after sync_dir() of their folder. crash() gives the disk as it may look after the machine
// comes back: everything written, only what was synced, or a seeded mixture with torn files.

#include <skein/core/disk.hpp>
#include <skein/core/random.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace skein::test {

enum class crash_mode { all_written, only_synced, mixed };

class crash_disk final : public disk {
public:
    crash_disk() : root_(std::make_shared<node>()) { root_->is_directory = true; }

    /// The power goes after `operations` more changes: the next one and all later ones fail.
    void power_off_after(std::uint64_t operations) { power_ = operations; }
    void power_on() { power_ = UINT64_MAX; }
    /// Only the change number `n` (from 0, counted from now) fails, with this code.
    void fail_once(std::uint64_t n, errc code) {
        failing_ = changes_ + n;
        failing_code_ = code;
    }
    /// Writes that would bring all files above `bytes` fail with disk_full after a part was written.
    void set_capacity(std::uint64_t bytes) { capacity_ = bytes; }
    [[nodiscard]] std::uint64_t changes() const { return changes_; }

    [[nodiscard]] std::unique_ptr<crash_disk> crash(crash_mode mode, std::uint64_t seed = 0) const {
        std::lock_guard guard(mutex_);
        seeded_random random(seed);
        auto after = std::make_unique<crash_disk>();
        after->root_ = survive(*root_, mode, random);
        return after;
    }

    // ---- straight access for tests that damage files --------------------------------------------
    [[nodiscard]] byte_buffer& content(const std::string& path) {
        auto found = walk(path);
        if (!found || found->is_directory) throw error(errc::not_found, "no file " + path);
        return found->live;
    }

    // ---- disk -----------------------------------------------------------------------------------
    result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) override {
        std::lock_guard guard(mutex_);
        auto found = walk(path);
        if (mode == open_mode::read && !found) return missing("open", path);
        if (mode == open_mode::create_new && found)
            return error(errc::already_exists, "create " + path + ": file exists");
        if (!found) {
            auto folder = walk(parent_path(path));
            if (!folder || !folder->is_directory) return missing("create", path);
            if (auto done = change("create", path); !done) return done.error();
            found = folder->entries[last_part(path)] = std::make_shared<node>();
        } else if (mode == open_mode::write) {
            if (auto done = change("create", path); !done) return done.error();
            found->live.clear();
        }
        if (found->is_directory) return error(errc::io, "open " + path + ": is a directory");
        return std::unique_ptr<file>(std::make_unique<handle>(*this, found, path));
    }
    result<void> rename(const std::string& from, const std::string& to) override {
        std::lock_guard guard(mutex_);
        auto what = walk(from);
        auto folder = walk(parent_path(to));
        if (!what || !folder) return missing("rename", from);
        if (auto target = walk(to); target && target->is_directory && !target->entries.empty())
            return error(errc::io, "rename " + from + " to " + to + ": directory not empty");
        if (auto done = change("rename", from); !done) return done;
        walk(parent_path(from))->entries.erase(last_part(from));
        folder->entries[last_part(to)] = what;
        return {};
    }
    result<void> sync_dir(const std::string& path) override {
        std::lock_guard guard(mutex_);
        auto found = walk(path);
        if (!found) return missing("sync folder", path);
        if (auto done = change("sync folder", path); !done) return done;
        found->durable_entries = found->entries;
        return {};
    }
    result<std::vector<dir_entry>> list(const std::string& path) override {
        std::lock_guard guard(mutex_);
        auto found = walk(path);
        if (!found || !found->is_directory) return missing("list", path);
        std::vector<dir_entry> out;
        for (auto& [name, entry] : found->entries)
            out.push_back(
                {name, entry->is_directory, entry->is_directory ? 0 : entry->live.size()});
        return out;
    }
    result<void> remove(const std::string& path) override {
        std::lock_guard guard(mutex_);
        auto found = walk(path);
        if (!found) return missing("remove", path);
        if (found->is_directory && !found->entries.empty())
            return error(errc::io, "remove " + path + ": directory not empty");
        if (auto done = change("remove", path); !done) return done;
        walk(parent_path(path))->entries.erase(last_part(path));
        return {};
    }
    result<void> make_dirs(const std::string& path) override {
        std::lock_guard guard(mutex_);
        auto at = root_;
        for (auto& part : parts(path)) {
            auto& next = at->entries[part];
            if (!next) {
                if (auto done = change("create folder", path); !done) {
                    at->entries.erase(part);
                    return done;
                }
                next = std::make_shared<node>();
                next->is_directory = true;
            }
            at = next;
        }
        return {};
    }
    result<std::uint64_t> free_space(const std::string&) override {
        std::lock_guard guard(mutex_);
        const auto used = bytes_of(*root_);
        return capacity_ > used ? capacity_ - used : 0;
    }
    result<dir_entry> status(const std::string& path) override {
        std::lock_guard guard(mutex_);
        auto found = walk(path);
        if (!found) return missing("stat", path);
        return dir_entry{last_part(path), found->is_directory,
                         found->is_directory ? 0 : found->live.size()};
    }

private:
    struct node {
        bool is_directory = false;
        byte_buffer live, durable;
        std::map<std::string, std::shared_ptr<node>> entries, durable_entries;
    };

    class handle final : public file {
    public:
        handle(crash_disk& owner, std::shared_ptr<node> at, std::string path)
            : owner_(owner), at_(std::move(at)), path_(std::move(path)) {}

        result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) override {
            std::lock_guard guard(owner_.mutex_);
            if (offset >= at_->live.size()) return std::size_t{0};
            const auto n = std::min<std::size_t>(into.size(), at_->live.size() - offset);
            std::copy_n(at_->live.begin() + static_cast<std::ptrdiff_t>(offset), n, into.begin());
            return n;
        }
        result<void> write_at(std::uint64_t offset, byte_span bytes) override {
            std::lock_guard guard(owner_.mutex_);
            if (auto done = owner_.change("write", path_); !done) return done;
            const auto end = std::max<std::uint64_t>(at_->live.size(), offset + bytes.size());
            const auto used = owner_.bytes_of(*owner_.root_) - at_->live.size();
            const auto room = owner_.capacity_ > used ? owner_.capacity_ - used : 0;
            if (end > room) {
                if (room > offset) put(offset, bytes.first(room - offset));
                return error(errc::disk_full, "write " + path_ + ": no space left on device")
                    .with_hint("free some space there or choose another folder");
            }
            put(offset, bytes);
            return {};
        }
        result<void> append(byte_span bytes) override { return write_at(at_->live.size(), bytes); }
        result<std::uint64_t> size() override { return std::uint64_t{at_->live.size()}; }
        result<void> truncate(std::uint64_t bytes) override {
            std::lock_guard guard(owner_.mutex_);
            if (auto done = owner_.change("truncate", path_); !done) return done;
            at_->live.resize(bytes);
            return {};
        }
        result<void> sync() override {
            std::lock_guard guard(owner_.mutex_);
            if (auto done = owner_.change("sync", path_); !done) return done;
            at_->durable = at_->live;
            return {};
        }
        result<void> close() override { return {}; }

    private:
        void put(std::uint64_t offset, byte_span bytes) {
            if (at_->live.size() < offset + bytes.size()) at_->live.resize(offset + bytes.size());
            std::copy(bytes.begin(), bytes.end(),
                      at_->live.begin() + static_cast<std::ptrdiff_t>(offset));
        }

        crash_disk& owner_;
        std::shared_ptr<node> at_;
        std::string path_;
    };

    static std::vector<std::string> parts(const std::string& path) {
        std::vector<std::string> out(1);
        for (char c : path)
            if (c != '/')
                out.back() += c;
            else if (!out.back().empty())
                out.emplace_back();
        if (out.back().empty() || out.back() == ".") out.pop_back();
        return out;
    }
    static std::string last_part(const std::string& path) { return parts(path).back(); }
    static error missing(std::string verb, const std::string& path) {
        return error(errc::not_found, verb + " " + path + ": no such file or directory");
    }
    [[nodiscard]] std::shared_ptr<node> walk(const std::string& path) const {
        auto at = root_;
        for (auto& part : parts(path)) {
            auto next = at->entries.find(part);
            if (next == at->entries.end()) return nullptr;
            at = next->second;
        }
        return at;
    }
    [[nodiscard]] static std::uint64_t bytes_of(const node& at) {
        std::uint64_t sum = at.live.size();
        for (auto& [name, entry] : at.entries) sum += bytes_of(*entry);
        return sum;
    }
    result<void> change(std::string verb, const std::string& path) {
        const auto n = changes_++;
        if (power_ == 0) return error(errc::io, verb + " " + path + ": the power is off");
        if (power_ != UINT64_MAX) --power_;
        if (n == failing_) return error(failing_code_, verb + " " + path + ": injected failure");
        return {};
    }
    [[nodiscard]] static std::shared_ptr<node> survive(const node& at, crash_mode mode,
                                                       random_source& random) {
        auto out = std::make_shared<node>();
        out->is_directory = at.is_directory;
        const bool written =
            mode == crash_mode::all_written || (mode == crash_mode::mixed && random.next() % 2);
        if (at.is_directory) {
            for (auto& [name, entry] : written ? at.entries : at.durable_entries)
                out->entries[name] = survive(*entry, mode, random);
            out->durable_entries = out->entries;
            return out;
        }
        out->live = written ? at.live : at.durable;
        // Torn: pages of the new content arrived up to some place, zeros after it.
        if (mode == crash_mode::mixed && at.live != at.durable && random.next() % 2 &&
            !at.live.empty()) {
            out->live = at.live;
            const auto cut = random.next() % at.live.size();
            std::fill(out->live.begin() + static_cast<std::ptrdiff_t>(cut), out->live.end(),
                      std::byte{0});
        }
        out->durable = out->live;
        return out;
    }

    mutable std::mutex mutex_;
    std::shared_ptr<node> root_;
    std::uint64_t changes_ = 0, power_ = UINT64_MAX, failing_ = UINT64_MAX, capacity_ = UINT64_MAX;
    errc failing_code_ = errc::io;
};

} // namespace skein::test
