// SPDX-License-Identifier: Apache-2.0
#pragma once
// How busy a host is: its processors, memory, network, and the disk of a folder.
//
//     proc::local_host here("/var/skein");
//     (void)here.sample(loop.now());               // shares and rates are since the sample before
//     const auto load = here.sample(later);        // load.cpu == 0.25: a quarter of all cores
//
// `host_watch` is an interface: this host here, one of a simulated world elsewhere.

#include <skein/core/config.hpp>
#include <skein/core/time.hpp>

#include <cstdint>
#include <string>

namespace skein::proc {

/// What a host does at a moment. What is not known is less than zero.
struct host_load {
    double cpu = -1; ///< of all its cores: 0 to 1, since the sample before
    double memory_used = -1, memory_total = -1;               ///< bytes
    double network_received = -1, network_sent = -1;          ///< bytes, since the host has started
    double network_receive_rate = -1, network_send_rate = -1; ///< bytes a second, as cpu
    double disk_used = -1, disk_total = -1;                   ///< bytes, of a folder's file system
};

/// One host that can be asked. For one thread at a time.
class host_watch {
public:
    host_watch() = default;
    host_watch(const host_watch&) = delete;
    host_watch& operator=(const host_watch&) = delete;
    virtual ~host_watch();

    ///   now  grows from call to call; its distance is that of the rates
    [[nodiscard]] virtual host_load sample(time_point now) = 0;
};

/// This host, by /proc and statvfs(): files are read, so not on a loop. Memory is used that the
/// kernel could not give to a program. Bytes of the network are those of all interfaces but the
/// loopback and the virtual ones of containers and machines on this host, whose bytes would be
/// counted twice.
class local_host final : public host_watch {
public:
    /// disk: a folder; empty: nothing is said of a disk. proc: where the kernel tells it.
    explicit local_host(std::string disk, std::string proc = "/proc")
        : disk_(std::move(disk)), proc_(std::move(proc)) {}
    [[nodiscard]] host_load sample(time_point now) override;

private:
    std::string disk_, proc_;
    time_point last_{};
    double busy_ = -1, all_ = 0; ///< ticks of the processors, at the sample before
    double received_ = -1, sent_ = -1;
};

namespace detail {

/// Ticks in which the processors worked, and all of them, of the text of /proc/stat.
struct processor_ticks {
    double busy = -1, all = 0;
};
[[nodiscard]] processor_ticks read_ticks(const std::string& stat);
/// Of the text of /proc/meminfo.
void read_memory(const std::string& meminfo, host_load& into);
/// Of the text of /proc/net/dev.
void read_network(const std::string& dev, host_load& into);

} // namespace detail
} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/host_load.ipp>
#endif
