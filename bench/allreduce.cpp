// SPDX-License-Identifier: Apache-2.0
// All-reduce of two ranks: shared memory against memcpy and Open MPI, the TCP ring against raw
// loopback TCP.
//
// Ranks are threads of this process, each with its comm thread, as in a training program; times are
// of one call seen from the compute thread, float32 sum, buffers warm.
//
//   memcpy baseline: two threads at once copy, between buffers of the size of the gradient buffer, the
//   bytes that a rank has to write for an all-reduce of S bytes without shared user buffers: S/2 handed
//   to the peer, S/2 results, S/2 results handed out, S/2 fetched = 2 S.
//   between the cores: the same bytes, but through buffers that the other thread reads: S bytes written
//   for it, S bytes read that it has just written, in pieces of 256 KiB with a spinning barrier around
//   each. While a piece fits in the caches every line has to move from one core's cache to the other's,
//   which no algorithm avoids: this is the limit where plain memcpy stays within its own cache.
//   raw TCP baseline: two threads, one connection per direction, each sends S bytes and receives S bytes
//   (what 2(N-1)/N * S is for N = 2) with non-blocking calls and poll, without looking at them.
//
//   memory: all_reduce, reduce_scatter_v and all_gather in memory of the communicator against its slots.
//   small: calls that begin on the compute thread against the same ones through the communicator's
//   thread, alone and beside two threads that compute all the time.
//   mpi: MPI_Allreduce of Open MPI, two processes, started anew for every measurement, so that they do
//   not spin beside ours (bench/allreduce_mpi.c).
//
//   allreduce [--times shm|ring]    prints "bytes seconds" lines instead, for bench/gloo_bench.py
#include "bench.hpp"

#include <skein/dist/bootstrap.hpp>
#include <skein/sim/local_rendezvous.hpp>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace skein;
using namespace skein::dist;
using skein::sim::local_world;

const std::vector<std::size_t> sizes = {4096, 65536, 1 << 20, 8 << 20, 64 << 20, 256 << 20};

std::string size_name(std::size_t bytes) {
    return bytes >= (1u << 20) ? fmt::format("{}MiB", bytes >> 20)
                               : fmt::format("{}KiB", bytes >> 10);
}
int repeats(std::size_t bytes) {
    return static_cast<int>(std::clamp<std::size_t>((std::size_t{96} << 20) / bytes, 1, 500));
}

/// Two threads that do the same job at the same time; run() gives the seconds of the slower one.
class two_threads {
public:
    explicit two_threads(std::function<void(int)> job) : job_(std::move(job)) {
        other_ = std::thread([this] {
            for (int round = 1;; ++round) {
                while (round_.load(std::memory_order_acquire) < round) round_.wait(round - 1);
                if (stop_) return;
                job_(1);
                done_.store(round, std::memory_order_release);
                done_.notify_one();
            }
        });
    }
    ~two_threads() {
        stop_ = true;
        round_.fetch_add(1, std::memory_order_release);
        round_.notify_one();
        other_.join();
    }
    double run() {
        return bench::seconds([&] {
            const int round = round_.fetch_add(1, std::memory_order_release) + 1;
            round_.notify_one();
            job_(0);
            for (int have; (have = done_.load(std::memory_order_acquire)) < round;)
                done_.wait(have);
        });
    }

private:
    std::function<void(int)> job_;
    std::atomic<int> round_{0}, done_{0};
    std::atomic<bool> stop_{false};
    std::thread other_;
};

enum class collective { all_reduce, reduce_scatter, all_gather };

std::string_view to_string(collective what) {
    if (what == collective::all_reduce) return "allreduce";
    return what == collective::reduce_scatter ? "reduce_scatter" : "all_gather";
}

/// A group of two with a buffer each, a vector's or the communicator's.
class pair {
public:
    pair(const std::string& kind, std::size_t bytes, bool allocated = false)
        : world_(kind == "ring" ? std::vector<std::string>{"a", "b"}
                                : std::vector<std::string>{"a", "a"}) {
        comm_options options;
        options.model = kind;
        if (const char* text = std::getenv("SKEIN_BENCH_CHUNK"))
            options.shm.chunk_bytes = std::strtoul(text, nullptr, 10);
        if (const char* text = std::getenv("SKEIN_BENCH_SMALL"))
            options.shm.small_bytes = std::strtoul(text, nullptr, 10);
        if (const char* text = std::getenv("SKEIN_BENCH_PIECE"))
            options.ring.piece_bytes = std::strtoul(text, nullptr, 10);
        const auto prepare = [&](int rank) {
            comms_[rank] = make_comm_thread(world_.at(rank), options);
            const std::size_t count = bytes / sizeof(float);
            if (allocated) {
                memory_[rank] = comms_[rank]->allocate(bytes, memory_kind::own);
                data_[rank] = std::span(reinterpret_cast<float*>(memory_[rank]->data()), count);
            } else {
                elsewhere_[rank].resize(count);
                data_[rank] = elsewhere_[rank];
            }
            std::fill(data_[rank].begin(), data_[rank].end(), 0.0f);
        };
        std::thread second([&] { prepare(1); });
        prepare(0);
        second.join();
    }
    void all_reduce(int rank, int times) {
        for (int i = 0; i < times; ++i) {
            comms_[rank]->all_reduce(view_of(data_[rank]), reduce_op::mean).wait();
        }
    }
    /// Through the communicator's thread, whatever the size.
    void queued_all_reduce(int rank, int times) {
        const auto io = view_of(data_[rank]);
        for (int i = 0; i < times; ++i) {
            comms_[rank]
                ->submit(io.bytes(),
                         [io](communicator& c) { return c.all_reduce(io, reduce_op::mean); })
                .wait();
        }
    }
    void run(collective what, int rank, int times) {
        const auto io = view_of(data_[rank]);
        const std::size_t half = io.count / 2;
        const auto own = io.slice(static_cast<std::size_t>(rank) * half, half);
        auto& comm = *comms_[rank];
        for (int i = 0; i < times; ++i) {
            if (what == collective::all_reduce)
                comm.all_reduce(io, reduce_op::sum).wait();
            else if (what == collective::reduce_scatter)
                comm.reduce_scatter_v(io, {half, half}, reduce_op::sum).wait();
            else
                comm.all_gather(own, io).wait();
        }
    }
    /// Seconds of an all-reduce, measured like bench/allreduce_mpi.c does: on a rank, after a round
    /// to warm up and a barrier.
    double seconds_like_mpi(int rank, int times) {
        double seconds = 0;
        for (int round = 0; round < 2; ++round) {
            comms_[rank]->barrier().wait();
            seconds = bench::seconds([&] { run(collective::all_reduce, rank, times); }) / times;
        }
        return seconds;
    }
    ~pair() {
        std::thread second([&] { comms_[1].reset(); });
        comms_[0].reset();
        second.join();
    }

private:
    local_world world_;
    std::unique_ptr<comm_thread> comms_[2];
    std::shared_ptr<group_memory> memory_[2];
    std::vector<float> elsewhere_[2];
    std::span<float> data_[2];
};

/// The bytes of an all-reduce copied from core to core, and nothing else.
class core_to_core {
public:
    explicit core_to_core(std::size_t bytes) : bytes_(bytes) {
        for (int r = 0; r < 2; ++r) {
            own_[r].assign(bytes, 1);
            shared_[r].assign(std::min(bytes, piece), 2);
        }
    }
    void copy(int rank, int times) {
        for (int i = 0; i < times; ++i) {
            for (std::size_t at = 0; at < bytes_; at += piece) {
                const std::size_t n = std::min(piece, bytes_ - at);
                std::memcpy(shared_[rank].data(), own_[rank].data() + at, n);
                meet(rank);
                std::memcpy(own_[rank].data() + at, shared_[1 - rank].data(), n);
                meet(rank);
            }
        }
    }

private:
    static constexpr std::size_t piece = std::size_t{256} << 10;
    struct alignas(128) counter {
        std::atomic<std::uint64_t> met{0};
    };
    void meet(int rank) {
        const auto mine = met_[rank].met.fetch_add(1, std::memory_order_acq_rel) + 1;
        while (met_[1 - rank].met.load(std::memory_order_acquire) < mine) cpu_pause();
    }

    std::size_t bytes_;
    std::vector<char> own_[2], shared_[2];
    counter met_[2];
};

/// Two connected TCP sockets over loopback, non-blocking.
std::pair<int, int> tcp_pair() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    const int a = ::socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || a < 0) std::abort();
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    if (::bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
        ::listen(listener, 1) != 0)
        std::abort();
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length);
    if (::connect(a, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) std::abort();
    const int b = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    for (const int fd : {a, b}) {
        const int on = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
    return {a, b};
}

/// Sends and receives `bytes` at the same time.
void exchange(int out, int in, const std::vector<char>& from, std::vector<char>& to,
              std::size_t bytes) {
    std::size_t sent = 0, got = 0;
    const std::size_t most = std::size_t{256} << 10;
    while (sent < bytes || got < bytes) {
        bool moved = false;
        if (sent < bytes) {
            const auto n =
                ::send(out, from.data() + sent, std::min(most, bytes - sent), MSG_NOSIGNAL);
            if (n > 0) {
                sent += static_cast<std::size_t>(n);
                moved = true;
            }
        }
        if (got < bytes) {
            const auto n = ::recv(in, to.data() + got, std::min(most, bytes - got), 0);
            if (n > 0) {
                got += static_cast<std::size_t>(n);
                moved = true;
            }
        }
        if (!moved) {
            pollfd wait[2] = {{out, static_cast<short>(sent < bytes ? POLLOUT : 0), 0},
                              {in, static_cast<short>(got < bytes ? POLLIN : 0), 0}};
            ::poll(wait, 2, -1);
        }
    }
}

void shm_figures() {
    for (const std::size_t bytes : sizes) {
        const int times = repeats(bytes);
        pair ranks("shm", bytes);
        two_threads ours([&](int rank) { ranks.all_reduce(rank, times); });
        std::vector<char> from[2], to[2];
        for (int r = 0; r < 2; ++r) {
            from[r].assign(bytes, 1);
            to[r].assign(bytes, 2);
        }
        two_threads copies([&](int rank) {
            for (int i = 0; i < 2 * times; ++i) {
                std::memcpy(to[rank].data(), from[rank].data(), bytes);
                bench::keep(to[rank][bytes / 2]);
            }
        });
        core_to_core through(bytes);
        two_threads crossing([&](int rank) { through.copy(rank, times); });
        const int rounds = bytes >= (std::size_t{64} << 20) ? 5 : 9;
        const auto [reduce_s, copy_s, crossing_s] = bench::in_turns<3>(
            rounds, {[&] { return ours.run() / times; }, [&] { return copies.run() / times; },
                     [&] { return crossing.run() / times; }});
        const double gb = static_cast<double>(bytes) * 1e-9;
        auto line =
            bench::figure(fmt::format("allreduce.shm.{}", size_name(bytes)), gb / reduce_s.median,
                          "GB/s")
                .against("memcpy of the 2 S bytes a rank writes, as S / time", gb / copy_s.median);
        if (bytes >= (1u << 20))
            std::move(line).at_least(0.85).print();
        else
            std::move(line).print(); // a call costs two thread wake-ups, which memcpy has not
        bench::figure(fmt::format("allreduce.shm.{}.crossing", size_name(bytes)),
                      gb / reduce_s.median, "GB/s")
            .against("memcpy of the same bytes between the cores", gb / crossing_s.median)
            .print();
        bench::figure(fmt::format("allreduce.shm.{}.plain", size_name(bytes)), gb / reduce_s.median,
                      "GB/s")
            .against("memcpy of S bytes", 2 * gb / copy_s.median)
            .print();
    }
}

/// The same collectives in memory of the communicator and through its slots.
void memory_figures() {
    for (const collective what :
         {collective::all_reduce, collective::reduce_scatter, collective::all_gather}) {
        for (const std::size_t bytes : sizes) {
            const int times = repeats(bytes);
            pair mapped("shm", bytes, true), slots("shm", bytes);
            two_threads in_place([&](int rank) { mapped.run(what, rank, times); });
            two_threads through([&](int rank) { slots.run(what, rank, times); });
            const int rounds = bytes >= (std::size_t{64} << 20) ? 5 : 9;
            const auto [mapped_s, slots_s] =
                bench::in_turns<2>(rounds, {[&] { return in_place.run() / times; },
                                            [&] { return through.run() / times; }});
            const double gb = static_cast<double>(bytes) * 1e-9;
            auto line =
                bench::figure(fmt::format("{}.memory.{}", to_string(what), size_name(bytes)),
                              gb / mapped_s.median, "GB/s")
                    .against("through slots", gb / slots_s.median);
            const bool all = what == collective::all_reduce;
            if (all && bytes == (std::size_t{1} << 20))
                std::move(line).at_least(1.3).print();
            else if (all && bytes >= (std::size_t{8} << 20) && bytes <= (std::size_t{64} << 20))
                std::move(line).at_least(1.6).print();
            else
                std::move(line).print();
        }
    }
}

/// Two threads that compute, while it lives.
class load {
public:
    explicit load(int threads) {
        for (int i = 0; i < threads; ++i) {
            threads_.emplace_back([this] {
                for (std::uint64_t x = 1; !stop_.load(std::memory_order_relaxed); ++x)
                    bench::keep(x);
            });
        }
    }
    ~load() {
        stop_ = true;
        for (auto& t : threads_) t.join();
    }

private:
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};

/// Small calls on the compute thread against the same ones through the communicator's thread.
void small_figures() {
    for (const int busy : {0, 2}) {
        for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{65536}}) {
            const int times = busy != 0 ? 100 : 500;
            pair ranks("shm", bytes);
            two_threads here([&](int rank) { ranks.all_reduce(rank, times); });
            two_threads queued([&](int rank) { ranks.queued_all_reduce(rank, times); });
            const load beside(busy);
            const auto [here_s, queued_s] = bench::in_turns<2>(
                11, {[&] { return here.run() / times; }, [&] { return queued.run() / times; }});
            const auto size = bytes < 1024 ? fmt::format("{}B", bytes) : size_name(bytes);
            bench::figure(fmt::format("allreduce.small.{}{}", size, busy != 0 ? ".busy" : ""),
                          here_s.median * 1e6, "us")
                .against("through the communicator's thread", queued_s.median * 1e6)
                .at_most(1.0)
                .print();
        }
    }
}

/// Open MPI's program, compiled for this run.
class mpi_program {
public:
    mpi_program() {
        const auto here = std::filesystem::path(__FILE__).parent_path();
        const std::string source = (here / "allreduce_mpi.c").string();
        if (!works("command -v mpicc") || !works("command -v mpirun")) {
            why_not_ = "no Open MPI: install openmpi-bin and libopenmpi-dev";
            return;
        }
        auto folder = (std::filesystem::temp_directory_path() / "skein-bench-XXXXXX").string();
        if (::mkdtemp(folder.data()) == nullptr) std::abort();
        folder_ = folder;
        if (!works(fmt::format("mpicc -O2 '{}' -o {}/allreduce_mpi", source, folder_)))
            why_not_ = "mpicc does not compile bench/allreduce_mpi.c";
        else if (seconds(4096, 1) <= 0)
            why_not_ = "mpirun does not start two processes here";
    }
    ~mpi_program() {
        if (folder_.empty()) return;
        ::unlink((folder_ + "/allreduce_mpi").c_str());
        ::rmdir(folder_.c_str());
    }
    /// Empty: it runs.
    [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }
    /// Of one call; 0 if the program failed.
    [[nodiscard]] double seconds(std::size_t bytes, int times) const {
        const auto command =
            fmt::format("mpirun -n 2 --allow-run-as-root --oversubscribe {}/allreduce_mpi {} {} "
                        "2>/dev/null",
                        folder_, bytes, times);
        std::FILE* const out = ::popen(command.c_str(), "r");
        if (out == nullptr) return 0;
        double s = 0;
        if (std::fscanf(out, "%lf", &s) != 1) s = 0;
        return ::pclose(out) == 0 ? s : 0;
    }

private:
    static bool works(const std::string& command) {
        return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
    }
    std::string folder_, why_not_;
};

/// All-reduce in memory of the communicator and through its slots, against Open MPI's.
void mpi_figures() {
    const mpi_program theirs;
    if (!theirs.why_not().empty()) {
        fmt::print("{{\"name\":\"allreduce.mpi\",\"skipped\":\"{}\"}}\n", theirs.why_not());
        return;
    }
    for (const std::size_t bytes : sizes) {
        const int times = repeats(bytes) * (bytes <= 65536 ? 10 : 1); // 4 KiB: 5 ms
        pair mapped("shm", bytes, true), slots("shm", bytes);
        double mine = 0; // of rank 0, which is this thread
        const auto measure = [&](pair& ranks) {
            return [&ranks, &mine, times](int rank) {
                const double s = ranks.seconds_like_mpi(rank, times);
                if (rank == 0) mine = s;
            };
        };
        two_threads in_place(measure(mapped)), through(measure(slots));
        const auto [mapped_s, slots_s, mpi_s] = bench::in_turns<3>(
            bytes <= (std::size_t{8} << 20) ? 15 : 5,
            {[&] { return (void)in_place.run(), mine; }, [&] { return (void)through.run(), mine; },
             [&] { return theirs.seconds(bytes, times); }});
        const double gb = static_cast<double>(bytes) * 1e-9;
        bench::figure(fmt::format("allreduce.mpi.{}", size_name(bytes)), gb / mapped_s.median,
                      "GB/s")
            .against("MPI_Allreduce of Open MPI", gb / mpi_s.median)
            .at_least(bytes >= (std::size_t{8} << 20) ? 2.0 : 1.0)
            .print();
        bench::figure(fmt::format("allreduce.mpi.{}.slots", size_name(bytes)), gb / slots_s.median,
                      "GB/s")
            .against("MPI_Allreduce of Open MPI", gb / mpi_s.median)
            .print();
    }
}

void ring_figures() {
    for (const std::size_t bytes : sizes) {
        const int times = repeats(bytes) / 2 + 1;
        pair ranks("ring", bytes);
        two_threads ours([&](int rank) { ranks.all_reduce(rank, times); });
        const auto [a, b] = tcp_pair();
        const auto [c, d] = tcp_pair();
        const int outs[2] = {a, d}, ins[2] = {c, b};
        std::vector<char> from[2], to[2];
        for (int r = 0; r < 2; ++r) {
            from[r].assign(bytes, 1);
            to[r].assign(bytes, 2);
        }
        two_threads raw([&](int rank) {
            for (int i = 0; i < times; ++i)
                exchange(outs[rank], ins[rank], from[rank], to[rank], bytes);
        });
        const int rounds = bytes >= (std::size_t{64} << 20) ? 5 : 9;
        const auto [reduce_s, raw_s] = bench::in_turns<2>(
            rounds, {[&] { return ours.run() / times; }, [&] { return raw.run() / times; }});
        const double gb = static_cast<double>(bytes) * 1e-9;
        auto line = bench::figure(fmt::format("allreduce.ring.{}", size_name(bytes)),
                                  gb / reduce_s.median, "GB/s")
                        .against("raw loopback TCP, S bytes each way", gb / raw_s.median);
        if (bytes >= (1u << 20))
            std::move(line).at_least(0.85).print();
        else
            std::move(line).print();
        for (const int fd : {a, b, c, d}) ::close(fd);
    }
}

void print_times(const std::string& kind) {
    for (const std::size_t bytes : sizes) {
        const int times = repeats(bytes);
        pair ranks(kind, bytes);
        two_threads ours([&](int rank) { ranks.all_reduce(rank, times); });
        const auto [s] = bench::in_turns<1>(5, {[&] { return ours.run() / times; }});
        fmt::print("{} {:.9f}\n", bytes, s.median);
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::string_view first = argc > 1 ? argv[1] : "";
    const std::string_view second = argc > 2 ? argv[2] : "";
    if (first == "--times" && second == "shm")
        print_times("shm");
    else if (first == "--times" && second == "ring")
        print_times("ring");
    else if (first == "shm")
        shm_figures();
    else if (first == "memory")
        memory_figures();
    else if (first == "small")
        small_figures();
    else if (first == "mpi")
        mpi_figures();
    else if (first == "ring")
        ring_figures();
    else if (first.empty()) {
        shm_figures();
        memory_figures();
        small_figures();
        mpi_figures();
        ring_figures();
    } else {
        std::fprintf(stderr, "allreduce [shm|memory|small|mpi|ring] [--times shm|ring]\n");
        return 2;
    }
    return 0;
}
