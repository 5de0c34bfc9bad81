// SPDX-License-Identifier: Apache-2.0
#pragma once
// The disk of the real world: POSIX calls, whole reads and writes, errno as typed errors.
//
//     skein::posix_disk disk;
//     auto content = disk.read_whole("corpus.txt");

#include <skein/core/disk.hpp>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

namespace skein {

/// errno of a file operation as an error: "write run/a: no space left on device".
[[nodiscard]] error errno_error(int number, std::string_view verb, const std::string& path);

namespace detail {

/// Repeats a system call that a signal interrupted.
template <class Call>
auto retry_eintr(Call call) noexcept(noexcept(call())) {
    for (;;) {
        const auto r = call();
        if (r != -1 || errno != EINTR) return r;
    }
}

} // namespace detail

/// What open() does when the last name of a path is a symbolic link.
enum class link_policy : std::uint8_t {
    follow,
    refuse ///< permission_denied: in a folder that others may write, a link can point at any file
};

/// Only files are opened: a pipe or socket in the place of one is refused at once, nothing waits
/// for it. What lies below a core/mounted_folder.hpp is asked of that one's disk.
class posix_disk final : public disk {
public:
    explicit posix_disk(link_policy links = link_policy::follow) noexcept : links_(links) {}

    result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) override;
    result<void> rename(const std::string& from, const std::string& to) override;
    result<void> sync_dir(const std::string& path) override;
    result<std::vector<dir_entry>> list(const std::string& path) override;
    result<void> remove(const std::string& path) override;
    result<void> make_dirs(const std::string& path) override;
    result<std::uint64_t> free_space(const std::string& path) override;
    result<dir_entry> status(const std::string& path) override;

private:
    link_policy links_;
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/posix_disk.ipp>
#endif
