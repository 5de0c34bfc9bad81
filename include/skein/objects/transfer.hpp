// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the bytes of an object come from the store that has it to another one: in chunks, which the
// store that wants them asks for, a few at a time, over a connection that has nothing else to carry.
//
//     objects::byte_source from(network, place, how, own);     // of one other store
//     auto fetching = from.fetch(number, {0, bytes}, write);   // write(at, bytes) for each chunk
//     co_await fetching;
//
// Frames carry a CRC32C. When a connection breaks, another one brings what is missing. Who wants it no
// longer cancels the task. Memory: some chunks for each object on its way, on either side.

#include <skein/core/bytes.hpp>
#include <skein/core/function.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/network.hpp>
#include <skein/objects/peer_messages.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace skein::objects {

/// Of one side of connections that carry bytes.
[[nodiscard]] net::connection_options chunk_connection(const net::token& secret,
                                                       std::uint64_t store);

/// Another store, as one that has objects. close() it when nothing is fetched from it any more.
class byte_source {
public:
    /// Where a chunk goes, while it is called.
    using writer = unique_function<void(std::uint64_t at, byte_span bytes)>;
    /// so many objects come at a time
    static constexpr std::size_t most_at_once = 4;
    /// so many chunks of each are on their way
    static constexpr std::size_t most_asked = 4;
    /// nobody answers there for so long: it is gone, unless it may come back
    static constexpr time_span gone_after = std::chrono::seconds(5);

    ///   via   must outlive this
    ///   self  the store that asks
    ///   may_come_back  it cannot be reached now, but is not given up yet
    byte_source(net::network& via, net::address at, net::token secret, std::uint64_t self,
                std::function<bool()> may_come_back = {});
    byte_source(const byte_source&) = delete;
    byte_source& operator=(const byte_source&) = delete;
    ~byte_source();

    /// Ends the connections that nothing comes over. Never throws.
    [[nodiscard]] task<void> close();
    /// Brings a part of an object, or all of it.
    ///   errors  not_found: it has no such object any more; refused, reset, ...: it cannot be
    ///           reached; malformed: it answers something else; what `write` throws; cancelled
    [[nodiscard]] task<void> fetch(object_number which, extent part, writer write);

private:
    class missing_chunks;
    static task<void> fetch_over(net::connection* wire, object_number which,
                                 missing_chunks* missing, writer* write);
    [[nodiscard]] task<net::connection::handle> connection();
    void keep(net::connection::handle wire);

    net::network& via_;
    net::address at_;
    net::token secret_;
    std::uint64_t self_;
    std::function<bool()> may_come_back_;
    semaphore turns_;
    std::vector<net::connection::handle> idle_;
};

/// Where the store that is asked finds the bytes: they stay until the hold is dropped.
struct held_bytes {
    byte_span bytes;
    std::shared_ptr<const void> hold;
};
/// Gives the bytes of objects over one connection until that ends. Never throws but for cancellation.
///   find  nothing: there is no such object
[[nodiscard]] task<void> serve_chunks(net::connection::handle wire,
                                      std::function<std::optional<held_bytes>(object_number)> find);

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/transfer.ipp>
#endif
