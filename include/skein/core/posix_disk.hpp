// SPDX-License-Identifier: Apache-2.0
#pragma once
// The disk of the real world: POSIX calls, whole reads and writes, errno as typed errors.
//
//     skein::posix_disk disk;
//     auto content = disk.read_whole("corpus.txt");

#include <skein/core/disk.hpp>

#include <cerrno>
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

class posix_disk final : public disk {
public:
    result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) override;
    result<void> rename(const std::string& from, const std::string& to) override;
    result<void> sync_dir(const std::string& path) override;
    result<std::vector<dir_entry>> list(const std::string& path) override;
    result<void> remove(const std::string& path) override;
    result<void> make_dirs(const std::string& path) override;
    result<std::uint64_t> free_space(const std::string& path) override;
    result<dir_entry> status(const std::string& path) override;
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/posix_disk.ipp>
#endif
