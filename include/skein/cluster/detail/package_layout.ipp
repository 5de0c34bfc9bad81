// SPDX-License-Identifier: Apache-2.0
#pragma once
// lay_out_tree() of cluster/detail/package_files.hpp: a package as a folder. Every name is made by
// a call relative to the folder that it is in, which was made here and is never reached through a
// link: so nothing is written outside, whoever has made the manifest.

#include <skein/core/posix_disk.hpp>
#include <skein/core/random.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace skein::cluster::detail {

/// A new folder beside the place of another, which is removed unless it gets there.
class tree_beside {
public:
    explicit tree_beside(const std::string& target);
    tree_beside(const tree_beside&) = delete;
    tree_beside& operator=(const tree_beside&) = delete;
    ~tree_beside();
    [[nodiscard]] int root() const noexcept { return root_.get(); }
    void rename();

private:
    std::string target_, parent_, name_;
    std::string beside_; ///< the name beside it; "" when it has gone
    unique_fd in_, root_;
};

SKEIN_INLINE tree_beside::tree_beside(const std::string& target) : target_(target) {
    while (target_.size() > 1 && target_.ends_with('/')) target_.pop_back();
    parent_ = parent_path(target_);
    name_ = target_.substr(target_.rfind('/') + 1); // npos + 1 is 0
    if (name_.empty() || name_ == "." || name_ == "..")
        throw error(errc::invalid_argument,
                    fmt::format("'{}' names no folder that could be made", target));
    in_.reset(::open(parent_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!in_) throw errno_error(errno, "open", parent_);
    struct stat is{};
    if (::fstatat(in_.get(), name_.c_str(), &is, AT_SYMLINK_NOFOLLOW) == 0)
        throw errno_error(EEXIST, "make", target_);
    std::array<std::byte, 8> drawn{};
    system_random().fill(drawn);
    const auto beside = fmt::format(".skein-new-{}", to_hex(drawn));
    if (::mkdirat(in_.get(), beside.c_str(), 0700) != 0)
        throw errno_error(errno, "make", join_path(parent_, beside));
    beside_ = beside;
    root_.reset(
        ::openat(in_.get(), beside_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!root_) {
        const int number = errno;
        ::unlinkat(in_.get(), beside_.c_str(), AT_REMOVEDIR);
        throw errno_error(number, "open", join_path(parent_, beside));
    }
}

SKEIN_INLINE tree_beside::~tree_beside() {
    if (beside_.empty()) return;
    posix_disk disk;
    (void)disk.remove_tree(join_path(parent_, beside_));
}

SKEIN_INLINE void tree_beside::rename() {
    constexpr unsigned no_replace = 1; // RENAME_NOREPLACE
    auto done =
        ::syscall(SYS_renameat2, in_.get(), beside_.c_str(), in_.get(), name_.c_str(), no_replace);
    // Some file systems do not know that flag; then an empty folder in its place is replaced.
    if (done != 0 && (errno == EINVAL || errno == ENOSYS))
        done = ::renameat(in_.get(), beside_.c_str(), in_.get(), name_.c_str());
    if (done != 0) throw errno_error(errno == ENOTEMPTY ? EEXIST : errno, "make", target_);
    beside_.clear();
}

/// Writes the entries of a manifest, in their order, below a folder.
class tree_writer {
public:
    tree_writer(int root, std::string shown, const std::stop_token& stop)
        : root_(root), shown_(std::move(shown)), stop_(stop) {}
    void write(const package_entry& e, const unique_fd& from);

private:
    [[nodiscard]] int folder_of(std::string_view path, std::string& name);
    void copy(const package_entry& e, const unique_fd& from, const unique_fd& to);
    [[nodiscard]] std::uint64_t copy_in_kernel(const package_entry& e, const unique_fd& from,
                                               const unique_fd& to);
    void check_stop() const;
    [[nodiscard]] error failed(int number, const package_entry& e) const {
        return errno_error(number, "write", join_path(shown_, e.path));
    }
    [[nodiscard]] error cut(const package_entry& e, std::uint64_t got) const {
        return error(errc::corrupt, fmt::format("{} of {} bytes of {} are there", got, e.size,
                                                join_path(shown_, e.path)))
            .with_hint("the disk has lost some of them: submit again");
    }

    int root_;
    std::string shown_; ///< where messages say that it is
    const std::stop_token& stop_;
    std::vector<std::pair<std::string, unique_fd>> open_; ///< from the root to the last entry
};

SKEIN_INLINE void tree_writer::check_stop() const {
    if (stop_.stop_requested())
        throw error(errc::cancelled, fmt::format("making {} was given up", shown_));
}

/// The folder of an entry, made where it is not there yet.
SKEIN_INLINE int tree_writer::folder_of(std::string_view path, std::string& name) {
    std::size_t depth = 0;
    for (auto rest = path;;) {
        const auto next = next_name(rest);
        if (rest.empty()) {
            name = next;
            break;
        }
        if (depth == open_.size() || open_[depth].first != next) {
            open_.resize(depth);
            const int in = depth == 0 ? root_ : open_.back().second.get();
            const auto made = std::string(next);
            if (::mkdirat(in, made.c_str(), 0700) != 0)
                throw errno_error(errno, "make the folder of", join_path(shown_, path));
            unique_fd folder(
                ::openat(in, made.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
            if (!folder) throw errno_error(errno, "open the folder of", join_path(shown_, path));
            open_.emplace_back(made, std::move(folder));
        }
        ++depth;
    }
    open_.resize(depth);
    return open_.empty() ? root_ : open_.back().second.get();
}

SKEIN_INLINE void tree_writer::write(const package_entry& e, const unique_fd& from) {
    check_stop();
    std::string name;
    const int in = folder_of(e.path, name);
    if (e.kind == static_cast<std::uint8_t>(entry_kind::link)) {
        if (::symlinkat(e.link_to.c_str(), in, name.c_str()) != 0) throw failed(errno, e);
    } else if (e.kind == static_cast<std::uint8_t>(entry_kind::folder)) {
        // Its owner may always write and remove there.
        if (::mkdirat(in, name.c_str(), 0700) != 0 ||
            ::fchmodat(in, name.c_str(), e.mode | 0700, 0) != 0)
            throw failed(errno, e);
    } else {
        const unique_fd to(
            ::openat(in, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!to) throw failed(errno, e);
        copy(e, from, to);
        if (::fchmod(to.get(), e.mode) != 0) throw failed(errno, e);
    }
}

/// How many bytes the kernel has copied by itself; fewer than all where it cannot.
SKEIN_INLINE std::uint64_t tree_writer::copy_in_kernel(const package_entry& e,
                                                       const unique_fd& from, const unique_fd& to) {
    constexpr std::uint64_t piece = std::uint64_t{4} << 20;
    std::uint64_t got = 0;
    while (got < e.size) {
        check_stop();
        const auto n = skein::detail::retry_eintr([&] {
            return ::copy_file_range(from.get(), nullptr, to.get(), nullptr,
                                     static_cast<std::size_t>(std::min(piece, e.size - got)), 0);
        });
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
            throw failed(errno, e);
        if (n <= 0) break;
        got += static_cast<std::uint64_t>(n);
    }
    return got;
}

SKEIN_INLINE void tree_writer::copy(const package_entry& e, const unique_fd& from,
                                    const unique_fd& to) {
    if (e.size == 0) return;
    struct stat is{};
    if (::fstat(from.get(), &is) != 0) throw failed(errno, e);
    if (static_cast<std::uint64_t>(is.st_size) != e.size)
        throw cut(e, static_cast<std::uint64_t>(is.st_size));
    std::uint64_t got = copy_in_kernel(e, from, to); // both files stand behind it now
    std::vector<std::byte> piece;
    while (got < e.size) {
        check_stop();
        piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(e.size - got, 1u << 20)));
        const auto n = skein::detail::retry_eintr(
            [&] { return ::read(from.get(), piece.data(), piece.size()); });
        if (n < 0) throw failed(errno, e);
        if (n == 0) throw cut(e, got);
        for (auto left = byte_span(piece).first(static_cast<std::size_t>(n)); !left.empty();) {
            const auto written = skein::detail::retry_eintr(
                [&] { return ::write(to.get(), left.data(), left.size()); });
            if (written < 0) throw failed(errno, e);
            left = left.subspan(static_cast<std::size_t>(written));
        }
        got += static_cast<std::uint64_t>(n);
    }
}

SKEIN_INLINE void lay_out_tree(const package_manifest& what, const std::string& target,
                               const std::function<unique_fd(const package_entry&)>& open,
                               const std::stop_token& stop) {
    tree_beside tree(target);
    {
        tree_writer writer(tree.root(), target, stop);
        for (const auto& e : what.entries) {
            const bool has_blob =
                e.kind == static_cast<std::uint8_t>(entry_kind::file) && e.size > 0;
            writer.write(e, has_blob ? open(e) : unique_fd());
        }
    }
    tree.rename();
}

} // namespace skein::cluster::detail
