// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one door to libcurl: requests to etcd on a thread of their own.
//
// The thread runs all requests of one register in one multi handle, which keeps connections. A
// request that is cancelled is taken out of it at once, and its coroutine goes on when that has been
// done: no call of the thread can come behind its end.

#include <skein/core/wait.hpp>
#include <skein/spmd/detail/etcd_transport.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <curl/curl.h>

namespace skein::spmd::detail {

/// What all requests have in common.
struct curl_files {
    std::string ca, cert, key; ///< PEM files; empty: none, ca: the system's
};

struct curl_job;

class curl_transport final : public etcd_transport {
public:
    ///   errors  not_found, malformed: a file that cannot be used; exhausted: no more threads
    explicit curl_transport(curl_files files);
    ~curl_transport() override;

    [[nodiscard]] task<etcd_answer> exchange(const etcd_request& request,
                                             etcd_line* on_line) override;
    /// Requests that the thread holds: for tests.
    [[nodiscard]] std::size_t running();

private:
    friend class curl_wait;

    void submit(std::shared_ptr<curl_job> job);
    void abort(const std::shared_ptr<curl_job>& job);
    void main();
    /// Takes what was asked for; false: the thread ends.
    bool take_orders();
    void take_ended();
    void begin(const std::shared_ptr<curl_job>& job);
    void end(curl_job& job, CURLcode code);
    void set_up(CURL* handle, curl_job& job);

    const curl_files files_;
    CURLM* multi_ = nullptr;
    std::mutex mutex_; // guards the four below
    std::vector<std::shared_ptr<curl_job>> wanted_, unwanted_;
    std::size_t number_ = 0; // of requests that have not ended
    bool stopping_ = false;
    std::vector<std::shared_ptr<curl_job>> jobs_; // the thread's own
    std::thread thread_;
};

} // namespace skein::spmd::detail

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/curl_transport.ipp>
#endif
