// SPDX-License-Identifier: Apache-2.0
// A head's log of any bytes: it is read, set aside or refused with an error, what was read is what
// stands there, and a head begins with it or says why not.
//
// The first byte chooses whether the rest is a whole file, or the records of one behind a good
// header.
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/head_log.hpp>
#include <skein/core/log.hpp>
#include <skein/sim/disk.hpp>
#include <skein/sim/loop.hpp>

#include <cstdint>
#include <cstdlib>
#include <memory>

using namespace skein;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 1) return 0;
    byte_buffer bytes;
    if ((data[0] & 1) != 0) bytes = cluster::write_log({});
    append(bytes, byte_span(reinterpret_cast<const std::byte*>(data) + 1, size - 1));
    const auto read = cluster::read_log(bytes);
    if (read.whole > bytes.size()) std::abort();
    if (read.is_log && read.version == 1 &&
        cluster::write_log(read.records) !=
            to_buffer(byte_span(bytes).first(static_cast<std::size_t>(read.whole))))
        std::abort();
    sim::disk disk;
    (void)disk.make_dirs("state");
    (void)disk.write_whole("state/head.log", bytes);
    sim::loop loop(1);
    logging::set_level(logging::level::off);
    const auto begin = [&] {
        cluster::detail::head_memory memory(loop);
        try {
            memory.open(std::make_shared<cluster::head_log>(disk, "state"), net::token(),
                        loop.random());
        } catch (const error&) { // of a newer release, or of another cluster
            return false;
        }
        return true;
    };
    if (begin() && !begin()) std::abort(); // what it has written itself it can read
    return 0;
}
