// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the simulated disk does with each call, and what a crash leaves of it.

#include <skein/core/error.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::sim {

SKEIN_INLINE disk::disk(random_source& random, disk_options options, fault_counts* counts)
    : random_(random), options_(options), counts_(counts) {}
SKEIN_INLINE disk::disk(disk_options options) : random_(own_), options_(options) {}
SKEIN_INLINE disk::~disk() = default;

// ---- small parts -------------------------------------------------------------------------------

SKEIN_INLINE std::string disk::clean(const std::string& path) {
    std::string out;
    for (const char c : path) {
        if (c == '/' && !out.empty() && out.back() == '/') continue;
        out += c;
    }
    while (out.size() > 1 && out.back() == '/') out.pop_back();
    return out.empty() ? "." : out;
}

SKEIN_INLINE void disk::apply(byte_buffer& to, const change& c, std::size_t part) {
    if (c.is_truncate) {
        to.resize(c.offset);
        return;
    }
    if (part == 0) return;
    if (to.size() < c.offset + part) to.resize(c.offset + part);
    std::copy_n(c.bytes.begin(), part, to.begin() + static_cast<std::ptrdiff_t>(c.offset));
}

SKEIN_INLINE error disk::missing(const std::string& verb, const std::string& path) {
    return error(errc::not_found, verb + " " + path + ": no such file or folder");
}

SKEIN_INLINE bool disk::io_fault() {
    if (options_.io_error <= 0 || random_.unit() >= options_.io_error) return false;
    count(fault::disk_io);
    return true;
}

SKEIN_INLINE void disk::count(fault f) {
    if (counts_ != nullptr) counts_->add(f);
}

/// Every operation that changes something asks here first: may it, this time?
SKEIN_INLINE std::optional<error> disk::begin_change(const std::string& verb,
                                                     const std::string& path) {
    if (read_only_)
        return error(errc::permission_denied,
                     fmt::format("{} {}: read-only file system", verb, path));
    const auto n = changes_++;
    if (power_ == 0) return error(errc::io, verb + " " + path + ": the power is off");
    if (power_ != UINT64_MAX) --power_;
    if (n == failing_) {
        count(failing_code_ == errc::disk_full ? fault::disk_full : fault::disk_io);
        return error(failing_code_, verb + " " + path + ": injected failure");
    }
    if (io_fault()) return error(errc::io, verb + " " + path + ": simulated input/output error");
    return std::nullopt;
}

SKEIN_INLINE void disk::change_names(name_change c) {
    step s;
    s.parents.insert(parent_path(c.path));
    if (!c.from.empty()) s.parents.insert(parent_path(c.from));
    s.name = std::move(c);
    now_.apply(s);
    journal_.push_back(std::move(s));
}

namespace detail {
/// The path below `to` of a path in or below `from`; nothing for any other.
SKEIN_INLINE std::optional<std::string> moved_path(const std::string& path, const std::string& from,
                                                   const std::string& to) {
    if (path != from && !path.starts_with(from + "/")) return std::nullopt;
    return to + path.substr(from.size());
}
} // namespace detail

SKEIN_INLINE void disk::names::move_folder(const std::string& from, const std::string& to) {
    const auto old_folders = std::exchange(folders, {});
    for (const auto& path : old_folders)
        folders.insert(detail::moved_path(path, from, to).value_or(path));
    const auto old_files = std::exchange(files, {});
    for (const auto& [path, node] : old_files)
        files[detail::moved_path(path, from, to).value_or(path)] = node;
}

SKEIN_INLINE void disk::names::apply(const step& s) {
    if (!s.folder_from.empty()) {
        move_folder(s.folder_from, s.folder_to);
        return;
    }
    const name_change& c = s.name;
    if (!c.from.empty()) files.erase(c.from);
    if (c.is_folder) {
        if (c.target)
            folders.insert(c.path);
        else
            folders.erase(c.path);
    } else if (c.target) {
        files[c.path] = c.target;
    } else {
        files.erase(c.path);
    }
}

SKEIN_INLINE std::uint64_t disk::used_bytes() const {
    std::uint64_t used = 0;
    for (const auto& [path, node] : now_.files) used += node->now.size();
    return used;
}

SKEIN_INLINE bool disk::has_entries(const std::string& folder) const {
    const auto inside = [&](const std::string& path) {
        return path != "." && path != "/" && parent_path(path) == folder;
    };
    for (const auto& path : now_.folders)
        if (inside(path)) return true;
    for (const auto& [path, node] : now_.files)
        if (inside(path)) return true;
    return false;
}

// ---- what tests set ----------------------------------------------------------------------------

SKEIN_INLINE std::uint64_t disk::changes() const {
    const std::lock_guard lock(mutex_);
    return changes_;
}
SKEIN_INLINE void disk::power_off_after(std::uint64_t changes) {
    const std::lock_guard lock(mutex_);
    power_ = changes;
}
SKEIN_INLINE void disk::fail_once(std::uint64_t n, errc code) {
    const std::lock_guard lock(mutex_);
    failing_ = changes_ + n;
    failing_code_ = code;
}
SKEIN_INLINE void disk::set_read_only(bool on) {
    const std::lock_guard lock(mutex_);
    read_only_ = on;
}
SKEIN_INLINE void disk::set_capacity(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    options_.capacity = bytes;
}
SKEIN_INLINE byte_buffer& disk::content(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const auto found = now_.files.find(clean(path));
    if (found == now_.files.end()) throw missing("content of", path);
    return found->second->now;
}
SKEIN_INLINE bool disk::flip_bit(const std::string& path, std::uint64_t bit) {
    const std::lock_guard lock(mutex_);
    const auto found = now_.files.find(clean(path));
    if (found == now_.files.end() || bit / 8 >= found->second->now.size()) return false;
    const auto flip = [&](byte_buffer& in) {
        if (bit / 8 < in.size()) in[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    };
    flip(found->second->now);
    flip(found->second->durable);
    return true;
}

// ---- open files --------------------------------------------------------------------------------

class disk::handle final : public file {
public:
    handle(disk& on, std::string path, inode_ptr node, bool writable)
        : disk_(on), path_(std::move(path)), node_(std::move(node)), writable_(writable),
          life_(on.life_) {}

    result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) override {
        const std::lock_guard lock(disk_.mutex_);
        if (auto bad = check_open()) return *bad;
        if (disk_.io_fault())
            return error(errc::io, "read " + path_ + ": simulated input/output error");
        if (offset >= node_->now.size()) return std::size_t{0};
        const std::size_t n = std::min<std::size_t>(into.size(), node_->now.size() - offset);
        std::copy_n(node_->now.begin() + static_cast<std::ptrdiff_t>(offset), n, into.begin());
        return n;
    }
    result<void> write_at(std::uint64_t offset, byte_span bytes) override {
        const std::lock_guard lock(disk_.mutex_);
        if (auto bad = check_change("write")) return *bad;
        return disk_.write(path_, *node_, offset, bytes);
    }
    result<void> append(byte_span bytes) override {
        const std::lock_guard lock(disk_.mutex_);
        if (auto bad = check_change("write")) return *bad;
        return disk_.write(path_, *node_, node_->now.size(), bytes);
    }
    result<std::uint64_t> size() override {
        const std::lock_guard lock(disk_.mutex_);
        if (auto bad = check_open()) return *bad;
        return std::uint64_t{node_->now.size()};
    }
    result<void> truncate(std::uint64_t bytes) override {
        const std::lock_guard lock(disk_.mutex_);
        if (auto bad = check_change("truncate")) return *bad;
        change c;
        c.offset = bytes;
        c.is_truncate = true;
        apply(node_->now, c, 0);
        node_->unsynced.push_back(std::move(c));
        return {};
    }
    result<void> sync() override {
        const std::lock_guard lock(disk_.mutex_);
        if (auto bad = check_open()) return *bad;
        if (auto bad = disk_.begin_change("sync", path_)) {
            // A failed sync drops the dirty pages: a second one would succeed and prove nothing.
            if (disk_.power_ != 0) node_->unsynced.clear();
            return *bad;
        }
        node_->durable = node_->now;
        node_->unsynced.clear();
        return {};
    }
    result<void> close() override {
        const std::lock_guard lock(disk_.mutex_);
        closed_ = true;
        return {};
    }

private:
    std::optional<error> check_open() {
        if (closed_ || life_ != disk_.life_) return error(errc::closed, path_ + " is closed");
        return std::nullopt;
    }
    std::optional<error> check_change(const char* verb) {
        if (auto bad = check_open()) return bad;
        if (!writable_) return error(errc::permission_denied, path_ + " is open for reading");
        return disk_.begin_change(verb, path_);
    }
    disk& disk_;
    std::string path_;
    inode_ptr node_;
    bool writable_, closed_ = false;
    std::uint64_t life_;
};

SKEIN_INLINE result<void> disk::write(const std::string& path, inode& node, std::uint64_t offset,
                                      byte_span bytes) {
    const std::uint64_t grows =
        offset + bytes.size() > node.now.size() ? offset + bytes.size() - node.now.size() : 0;
    const auto left = free_space(path);
    const std::uint64_t missing_bytes = grows > *left ? grows - *left : 0;
    // What fits is written, as a kernel does.
    bytes = bytes.first(bytes.size() - std::min<std::uint64_t>(bytes.size(), missing_bytes));
    change c;
    c.offset = offset;
    c.bytes = to_buffer(bytes);
    apply(node.now, c, bytes.size());
    node.unsynced.push_back(std::move(c));
    if (missing_bytes == 0) return {};
    count(fault::disk_full);
    return error(errc::disk_full,
                 fmt::format("write {}: no space left on device, {} bytes do not fit", path,
                             missing_bytes))
        .with_hint("free some space there or choose another folder");
}

// ---- the tree ----------------------------------------------------------------------------------

SKEIN_INLINE result<std::unique_ptr<file>> disk::open(const std::string& raw, open_mode mode) {
    const std::lock_guard lock(mutex_);
    const std::string path = clean(raw);
    if (now_.folders.contains(path)) return error(errc::io, "open " + path + ": is a folder");
    const auto found = now_.files.find(path);
    if (mode == open_mode::create_new && found != now_.files.end()) {
        return error(errc::already_exists, "create " + path + ": it is there already");
    }
    inode_ptr node;
    if (found != now_.files.end()) {
        node = found->second;
        if (mode == open_mode::write) {
            if (auto bad = begin_change("create", path)) return *bad;
            change c;
            c.is_truncate = true;
            apply(node->now, c, 0);
            node->unsynced.push_back(std::move(c));
        }
    } else {
        if (mode == open_mode::read || !now_.folders.contains(parent_path(path)))
            return missing(mode == open_mode::read ? "open" : "create", path);
        if (auto bad = begin_change("create", path)) return *bad;
        node = std::make_shared<inode>();
        name_change c;
        c.path = path;
        c.target = node;
        change_names(std::move(c));
    }
    return std::unique_ptr<file>(
        std::make_unique<handle>(*this, path, node, mode != open_mode::read));
}

SKEIN_INLINE result<void> disk::rename(const std::string& raw_from, const std::string& raw_to) {
    const std::lock_guard lock(mutex_);
    const std::string from = clean(raw_from), to = clean(raw_to);
    const bool folder = now_.folders.contains(from);
    const auto found = now_.files.find(from);
    if (!folder && found == now_.files.end()) return missing("rename", from);
    if (!now_.folders.contains(parent_path(to))) return missing("rename to", to);
    if (now_.folders.contains(to) && (!folder || (from != to && has_entries(to)))) {
        return error(errc::io, "rename " + from + " to " + to +
                                   (folder ? ": the folder is not empty" : ": is a folder"));
    }
    if (folder && now_.files.contains(to))
        return error(errc::io, "rename " + from + " to " + to + ": is a file");
    if (auto bad = begin_change("rename", from)) return *bad;
    if (from == to) return {};
    if (folder) return rename_folder(from, to);
    name_change c;
    c.path = to;
    c.from = from;
    c.target = found->second;
    change_names(std::move(c));
    return {};
}

/// A folder moves with all that is in it; what was not durable in it waits under its new name.
SKEIN_INLINE result<void> disk::rename_folder(const std::string& from, const std::string& to) {
    for (auto& earlier : journal_) {
        for (std::string* path : {&earlier.name.path, &earlier.name.from})
            if (path->starts_with(from + "/")) *path = *detail::moved_path(*path, from, to);
        std::set<std::string> parents;
        for (const auto& path : earlier.parents)
            parents.insert(detail::moved_path(path, from, to).value_or(path));
        earlier.parents = std::move(parents);
    }
    step s;
    s.folder_from = from;
    s.folder_to = to;
    s.parents = {parent_path(from), parent_path(to)};
    now_.apply(s);
    journal_.push_back(std::move(s));
    return {};
}

SKEIN_INLINE result<void> disk::sync_dir(const std::string& raw) {
    const std::lock_guard lock(mutex_);
    const std::string path = clean(raw);
    if (!now_.folders.contains(path)) return missing("sync folder", path);
    if (auto bad = begin_change("sync folder", path)) return *bad;
    std::vector<step> left;
    for (auto& s : journal_) {
        if (s.parents.contains(path)) {
            durable_.apply(s);
        } else {
            left.push_back(std::move(s));
        }
    }
    journal_ = std::move(left);
    return {};
}

SKEIN_INLINE result<std::vector<dir_entry>> disk::list(const std::string& raw) {
    const std::lock_guard lock(mutex_);
    const std::string path = clean(raw);
    if (!now_.folders.contains(path)) return missing("list", path);
    std::vector<dir_entry> out;
    const auto add = [&](const std::string& entry, bool folder, std::uint64_t bytes) {
        if (entry == "." || entry == "/" || parent_path(entry) != path) return;
        dir_entry e;
        e.name = entry.substr(entry.find_last_of('/') + 1);
        e.is_directory = folder;
        e.bytes = bytes;
        out.push_back(std::move(e));
    };
    for (const auto& folder : now_.folders) add(folder, true, 0);
    for (const auto& [name, node] : now_.files) add(name, false, node->now.size());
    std::sort(out.begin(), out.end(),
              [](const dir_entry& a, const dir_entry& b) { return a.name < b.name; });
    return out;
}

SKEIN_INLINE result<void> disk::remove(const std::string& raw) {
    const std::lock_guard lock(mutex_);
    const std::string path = clean(raw);
    name_change c;
    c.path = path;
    c.is_folder = now_.folders.contains(path);
    if (c.is_folder && has_entries(path))
        return error(errc::io, "remove " + path + ": the folder is not empty");
    if (!c.is_folder && !now_.files.contains(path)) return missing("remove", path);
    if (auto bad = begin_change("remove", path)) return *bad;
    change_names(std::move(c));
    return {};
}

SKEIN_INLINE result<void> disk::make_dirs(const std::string& raw) {
    const std::lock_guard lock(mutex_);
    const std::string path = clean(raw);
    if (now_.folders.contains(path)) return {};
    if (now_.files.contains(path))
        return error(errc::already_exists, "create folder " + path + ": it is a file");
    if (auto above = make_dirs(parent_path(path)); !above) return above;
    if (auto bad = begin_change("create folder", path)) return *bad;
    name_change c;
    c.path = path;
    c.is_folder = true;
    c.target = std::make_shared<inode>();
    change_names(std::move(c));
    return {};
}

SKEIN_INLINE result<std::uint64_t> disk::free_space(const std::string&) {
    const std::lock_guard lock(mutex_);
    const auto used = used_bytes();
    return used < options_.capacity ? options_.capacity - used : 0;
}

SKEIN_INLINE result<dir_entry> disk::status(const std::string& raw) {
    const std::lock_guard lock(mutex_);
    const std::string path = clean(raw);
    dir_entry e;
    e.name = path.substr(path.find_last_of('/') + 1);
    if (now_.folders.contains(path)) {
        e.is_directory = true;
        return e;
    }
    const auto found = now_.files.find(path);
    if (found == now_.files.end()) return missing("status of", path);
    e.bytes = found->second->now.size();
    return e;
}

} // namespace skein::sim
