// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way to etcd: one HTTP request, one answer. Over sockets it is curl_transport; in tests a
// script, which loses answers, cuts them in half or keeps them for an hour.

#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace skein::spmd::detail {

struct etcd_request {
    std::string url;
    std::string body;  ///< empty: GET, else POST
    std::string token; ///< of etcd's authenticate; empty: none
    duration timeout{};
    /// A stream: etcd ends it where the member has no leader.
    bool needs_leader = false;
};

/// What kept a request from being answered.
enum class etcd_trouble : std::uint8_t {
    none,
    away,    ///< nobody answers: refused, unreachable, no such name, broken off, too late
    mistake, ///< trying again comes to the same: a certificate, a URL
};

struct etcd_answer {
    etcd_trouble trouble = etcd_trouble::none;
    std::string why; ///< of the trouble
    int status = 0;  ///< of HTTP, where there was no trouble
    std::string body;
};

/// Called on the caller's loop with each line of a stream that was successful; false ends it.
using etcd_line = unique_function<bool(std::string_view line)>;

class etcd_transport {
public:
    etcd_transport() = default;
    etcd_transport(const etcd_transport&) = delete;
    etcd_transport& operator=(const etcd_transport&) = delete;
    virtual ~etcd_transport() = default;

    /// Suspends until the answer is whole, or there is trouble. With on_line an answer of status 200
    /// has no body: its lines go there as they come.
    ///   request, on_line  outlive the task
    ///   errors            cancelled: then the request has been broken off, and its socket closed.
    ///                     Everything else is in the answer
    [[nodiscard]] virtual task<etcd_answer> exchange(const etcd_request& request,
                                                     etcd_line* on_line) = 0;
};

} // namespace skein::spmd::detail
