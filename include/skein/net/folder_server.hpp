// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of this host for processes of others: what they do with net/far_disk.hpp is done here.
//
//     net::folder_server runs(network, net::address::any(), secret, disk, "/data/job/runs");
//     const auto port = runs.local().port;              // where others find it
//     serving.spawn(runs.serve());                      // until it is cancelled
//
// Whoever has the secret may read and write all that is in the folder, as this process's user, and
// nothing else: a path with ".." is refused, and so is a link in the place of a file. A link in the
// place of a folder is followed: they are its owner's. What a link has opened is closed, and its
// locks are free, when the link has ended. All that touches the disk runs on the pool.

#include <skein/core/config.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/task.hpp>
#include <skein/net/address.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/network.hpp>
#include <skein/net/token.hpp>

#include <memory>
#include <string>

namespace skein::net {

/// Belongs to one loop.
class folder_server {
public:
    /// Listens at once.
    ///   files   of the folder; must outlive it
    ///   folder  absolute; made when something is put there
    ///   errors  those of network::listen
    folder_server(network& via, const address& at, const token& secret, disk& files,
                  std::string folder);
    ~folder_server();

    [[nodiscard]] address local() const;
    /// Until it is cancelled; then its links have ended.
    [[nodiscard]] task<void> serve();

private:
    struct state; // in detail/folder_server.ipp
    std::unique_ptr<state> state_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/folder_server.ipp>
#endif
