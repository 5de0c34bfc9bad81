// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files in which processes of jobs find their keys: one of each attempt, which this user alone can
// read, for as long as something of that attempt is on the node.
//
//     key_files files;
//     const auto key = files.keep("/data/n1", token.derive({net::key_kind::attempt, 7}));
//     setenv("SKEIN_TOKEN_FILE", key->path());            // removed with the last `key`

#include <skein/core/config.hpp>
#include <skein/net/token.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace skein::cluster::detail {

/// Safe on several threads.
class key_files {
public:
    class file;
    using handle = std::shared_ptr<const file>;

    key_files();
    /// Below `folder`, which is this process's own: what another one has left there is removed first.
    /// The token that older releases kept there, too.
    ///   errors  io
    [[nodiscard]] handle keep(const std::string& folder, const net::token& key);

private:
    struct state;
    std::shared_ptr<state> state_;
};

/// Removes itself with its last handle.
class key_files::file {
public:
    file(std::shared_ptr<state> of, std::string path);
    file(const file&) = delete;
    file& operator=(const file&) = delete;
    ~file();
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

private:
    std::shared_ptr<state> of_;
    std::string path_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/key_files.ipp>
#endif
