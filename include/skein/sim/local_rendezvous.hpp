// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rendezvous for ranks that are threads of one process: tests, benchmarks, notebooks.
//
//     local_world world(2);                        // or local_world({"a", "a", "b"}): host by rank
//     std::thread t([&] { auto comm = make_communicator(world.at(1), ...); ... });

#include <skein/core/constants.hpp>
#include <skein/core/time.hpp>
#include <skein/spmd/rendezvous.hpp>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::sim {

/// The meeting place. Outlives its members; at(r) is used by one thread each.
class local_world {
public:
    explicit local_world(int size);
    /// One host name per rank; ranks with the same name are on one host.
    explicit local_world(std::vector<std::string> hosts);
    local_world(const local_world&) = delete;
    local_world& operator=(const local_world&) = delete;
    ~local_world();

    [[nodiscard]] spmd::rendezvous& at(int rank);
    [[nodiscard]] int size() const noexcept { return static_cast<int>(hosts_.size()); }
    /// How long an exchange waits for the others.
    void set_deadline(time_span limit) { deadline_ = limit; }

    /// Plays the loss of a rank: every other rank is told, exchanges fail.
    void lose(int rank, error why);

private:
    class member;
    struct table {
        std::vector<byte_buffer> blobs;
        std::vector<bool> there;
        int came = 0, left = 0;
    };

    static std::size_t checked(int n);
    std::vector<byte_buffer> exchange(std::string key, int rank, byte_span mine);

    std::vector<std::string> hosts_;
    net::token secret_ = net::token::generate();
    time_span deadline_ = time_constants::lan().rendezvous_timeout;
    std::vector<std::unique_ptr<member>> members_;

    std::mutex guard_; // the fields below
    std::condition_variable arrived_;
    std::map<std::string, table> tables_;
    std::optional<std::pair<int, error>> lost_;
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/local_rendezvous.ipp>
#endif
