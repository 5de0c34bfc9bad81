// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the simulated disk does with each call, and what a crash leaves of it.

#include <skein/core/error.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::sim {

SKEIN_INLINE disk::disk(random_source& random, disk_options options, fault_counts* counts)
    : random_(random), options_(options), counts_(counts) {}
SKEIN_INLINE disk::~disk() = default;

SKEIN_INLINE result<std::uint64_t> disk::free_space(const std::string&) {
    const auto used = used_bytes();
    return used < options_.capacity ? options_.capacity - used : 0;
}

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

SKEIN_INLINE error disk::missing(const std::string& path) {
    return error(errc::not_found, "no such file or folder: " + path);
}

SKEIN_INLINE bool disk::io_fault() {
    if (options_.io_error <= 0 || random_.unit() >= options_.io_error) return false;
    count(fault::disk_io);
    return true;
}

SKEIN_INLINE void disk::change_names(name_change c) {
    step s;
    s.parents.insert(parent_path(c.path));
    if (!c.from.empty()) s.parents.insert(parent_path(c.from));
    now_.apply(c);
    s.parts.push_back(std::move(c));
    journal_.push_back(std::move(s));
}

SKEIN_INLINE std::uint64_t disk::used_bytes() const {
    std::uint64_t used = 0;
    for (const auto& [path, node] : now_.files) used += node->now.size();
    return used;
}

SKEIN_INLINE void disk::names::apply(const name_change& c) {
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

class disk::handle final : public file {
public:
    handle(disk& on, std::string path, inode_ptr node, bool writable)
        : disk_(on), path_(std::move(path)), node_(std::move(node)), writable_(writable),
          life_(on.life_) {}

    result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) override {
        if (auto bad = check(false, true)) return *bad;
        if (offset >= node_->now.size()) return std::size_t{0};
        const std::size_t n = std::min<std::size_t>(into.size(), node_->now.size() - offset);
        std::copy_n(node_->now.begin() + static_cast<std::ptrdiff_t>(offset), n, into.begin());
        return n;
    }
    result<void> write_at(std::uint64_t offset, byte_span bytes) override {
        if (auto bad = check(true, true)) return *bad;
        return disk_.write(path_, *node_, offset, bytes);
    }
    result<void> append(byte_span bytes) override {
        if (auto bad = check(true, true)) return *bad;
        return disk_.write(path_, *node_, node_->now.size(), bytes);
    }
    result<std::uint64_t> size() override {
        if (auto bad = check(false, false)) return *bad;
        return std::uint64_t{node_->now.size()};
    }
    result<void> truncate(std::uint64_t bytes) override {
        if (auto bad = check(true, true)) return *bad;
        change c;
        c.offset = bytes;
        c.is_truncate = true;
        apply(node_->now, c, 0);
        node_->unsynced.push_back(std::move(c));
        return {};
    }
    result<void> sync() override {
        if (auto bad = check(false, true)) {
            // A failed sync drops the dirty pages: a second one would succeed and prove nothing.
            if (bad->code() == errc::io) node_->unsynced.clear();
            return *bad;
        }
        node_->durable = node_->now;
        node_->unsynced.clear();
        return {};
    }
    result<void> close() override {
        closed_ = true;
        return {};
    }

private:
    std::optional<error> check(bool writing, bool may_fail) {
        if (closed_ || life_ != disk_.life_) return error(errc::closed, path_ + " is closed");
        if (writing && !writable_)
            return error(errc::permission_denied, path_ + " is open for reading");
        if (may_fail && disk_.io_fault())
            return error(errc::io, path_ + ": simulated input/output error");
        return std::nullopt;
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
    const auto room = free_space(path);
    change c;
    c.offset = offset;
    if (grows > *room) { // what fits is written, as a kernel does
        count(fault::disk_full);
        const std::uint64_t missing_bytes = grows - *room;
        bytes = bytes.first(bytes.size() - std::min<std::uint64_t>(bytes.size(), missing_bytes));
        c.bytes = to_buffer(bytes);
        apply(node.now, c, bytes.size());
        node.unsynced.push_back(std::move(c));
        return error(errc::disk_full, fmt::format("write {}: no space left, {} bytes do not fit",
                                                  path, missing_bytes));
    }
    c.bytes = to_buffer(bytes);
    apply(node.now, c, bytes.size());
    node.unsynced.push_back(std::move(c));
    return {};
}

SKEIN_INLINE result<std::unique_ptr<file>> disk::open(const std::string& raw, open_mode mode) {
    const std::string path = clean(raw);
    if (now_.folders.contains(path)) return error(errc::invalid_argument, path + " is a folder");
    const auto found = now_.files.find(path);
    if (mode == open_mode::create_new && found != now_.files.end()) {
        return error(errc::already_exists, path + " is there already");
    }
    inode_ptr node;
    if (found != now_.files.end()) {
        node = found->second;
        if (mode == open_mode::write && !node->now.empty()) {
            change c;
            c.is_truncate = true;
            apply(node->now, c, 0);
            node->unsynced.push_back(std::move(c));
        }
    } else {
        if (mode == open_mode::read || !now_.folders.contains(parent_path(path)))
            return missing(path);
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
    const std::string from = clean(raw_from), to = clean(raw_to);
    if (now_.folders.contains(from)) { // a folder moves with all that is in it
        if (!now_.folders.contains(parent_path(to))) return missing(parent_path(to));
        step s;
        s.parents = {parent_path(from), parent_path(to)};
        for (const auto& path : now_.folders) {
            if (path != from && !path.starts_with(from + "/")) continue;
            name_change made, gone;
            made.path = to + path.substr(from.size());
            made.is_folder = gone.is_folder = true;
            made.target = std::make_shared<inode>();
            gone.path = path;
            s.parts.push_back(std::move(made));
            s.parts.push_back(std::move(gone));
        }
        for (const auto& [path, node] : now_.files) {
            if (!path.starts_with(from + "/")) continue;
            name_change c;
            c.path = to + path.substr(from.size());
            c.from = path;
            c.target = node;
            s.parts.push_back(std::move(c));
        }
        for (const auto& c : s.parts) now_.apply(c);
        journal_.push_back(std::move(s));
        return {};
    }
    const auto found = now_.files.find(from);
    if (found == now_.files.end()) return missing(from);
    if (!now_.folders.contains(parent_path(to))) return missing(parent_path(to));
    name_change c;
    c.path = to;
    c.from = from;
    c.target = found->second;
    change_names(std::move(c));
    return {};
}

SKEIN_INLINE result<void> disk::sync_dir(const std::string& raw) {
    const std::string path = clean(raw);
    if (!now_.folders.contains(path)) return missing(path);
    if (io_fault()) return error(errc::io, path + ": simulated input/output error");
    std::vector<step> left;
    for (auto& s : journal_) {
        if (s.parents.contains(path)) {
            for (const auto& c : s.parts) durable_.apply(c);
        } else {
            left.push_back(std::move(s));
        }
    }
    journal_ = std::move(left);
    return {};
}

SKEIN_INLINE result<std::vector<dir_entry>> disk::list(const std::string& raw) {
    const std::string path = clean(raw);
    if (!now_.folders.contains(path)) return missing(path);
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
    const std::string path = clean(raw);
    name_change c;
    c.path = path;
    if (now_.folders.contains(path)) {
        const auto inside = list(path);
        if (!inside->empty())
            return error(errc::io, "remove " + path + ": the folder is not empty");
        c.is_folder = true;
    } else if (!now_.files.contains(path)) {
        return missing(path);
    }
    change_names(std::move(c));
    return {};
}

SKEIN_INLINE result<void> disk::make_dirs(const std::string& raw) {
    const std::string path = clean(raw);
    if (now_.folders.contains(path)) return {};
    if (now_.files.contains(path)) return error(errc::already_exists, path + " is a file");
    if (auto above = make_dirs(parent_path(path)); !above) return above;
    name_change c;
    c.path = path;
    c.is_folder = true;
    c.target = std::make_shared<inode>();
    change_names(std::move(c));
    return {};
}

SKEIN_INLINE result<dir_entry> disk::status(const std::string& raw) {
    const std::string path = clean(raw);
    dir_entry e;
    e.name = path.substr(path.find_last_of('/') + 1);
    if (now_.folders.contains(path)) {
        e.is_directory = true;
        return e;
    }
    const auto found = now_.files.find(path);
    if (found == now_.files.end()) return missing(path);
    e.bytes = found->second->now.size();
    return e;
}

SKEIN_INLINE bool disk::flip_bit(const std::string& path, std::uint64_t bit) {
    const auto found = now_.files.find(clean(path));
    if (found == now_.files.end() || bit / 8 >= found->second->now.size()) return false;
    const auto flip = [&](byte_buffer& in) {
        if (bit / 8 < in.size()) in[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    };
    flip(found->second->now);
    flip(found->second->durable);
    return true;
}

SKEIN_INLINE void disk::crash() {
    ++life_;
    // Names: the changes that had reached the medium by themselves, in their order.
    const std::uint64_t kept = random_.below(journal_.size() + 1);
    for (std::uint64_t i = 0; i < kept; ++i) {
        for (const auto& c : journal_[i].parts) durable_.apply(c);
    }
    journal_.clear();
    now_ = durable_;
    // Content: every unsynced write has its own fate. Files in the order of their names; a file that
    // has two names is done once.
    for (auto& [path, node] : now_.files) {
        for (const auto& c : node->unsynced) {
            switch (random_.below(3)) {
            case 0: count(fault::disk_lost); break;
            case 1:
                count(fault::disk_torn);
                apply(node->durable, c,
                      static_cast<std::size_t>(random_.below(c.bytes.size() + 1)));
                break;
            default: apply(node->durable, c, c.bytes.size()); break;
            }
        }
        node->unsynced.clear();
        node->now = node->durable;
    }
}

} // namespace skein::sim
