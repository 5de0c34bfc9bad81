// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of another host as a disk: what is asked of it is done there, by net/folder_server.hpp.
//
//     net::far_disk there(net::address::parse("tcp:10.0.0.1:40123").value(), secret,
//                         "/data/job/runs");        // as that folder is called there
//     auto text = there.read_whole("/data/job/runs/gpt/config.json");
//
// Calls block, from any thread; a link of its own, on a thread of its own. When that is lost all
// calls fail from then on, and the files are closed there.

#include <skein/core/config.hpp>
#include <skein/core/disk.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>

#include <memory>
#include <string>
#include <vector>

namespace skein::net {

/// Paths are absolute, and in the folder: others are refused (not_supported).
class far_disk final : public disk {
public:
    /// Dials at once.
    ///   folder  absolute, as the server's host calls it
    ///   errors  those of link::connect, timeout
    far_disk(const address& at, const token& secret, std::string folder);
    ~far_disk() override;

    result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) override;
    result<void> rename(const std::string& from, const std::string& to) override;
    result<void> sync_dir(const std::string& path) override;
    result<std::vector<dir_entry>> list(const std::string& path) override;
    result<void> remove(const std::string& path) override;
    result<void> make_dirs(const std::string& path) override;
    result<std::uint64_t> free_space(const std::string& path) override;
    result<dir_entry> status(const std::string& path) override;

private:
    class way; // in detail/far_disk.ipp
    class far_file;
    std::shared_ptr<way> way_; // of open files, too
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/far_disk.ipp>
#endif
