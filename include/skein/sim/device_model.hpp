// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model of devices with CUDA's runtime and NCCL, for tests. No program can choose it.
//
// It fills the tables of dist/cuda_runtime.hpp and dist/nccl.hpp, so code over them runs unchanged.
// What is put on streams runs in any legal order, which a seed chooses, and only while somebody
// asks or waits. It finds what a real device does not tell: memory used after its release or before
// its event, work in flight under a release, communicators aborted one by one. It knows nothing of
// speed, and was never compared with a device: where one differs, the model is wrong.
//
//     device_model model({.devices = 2, .seed = 7});
//     const dist::cuda_runtime cuda = model.cuda();      // each rank has one
//     ... two ranks reduce ...
//     CHECK(model.complaints().empty());

#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/device_math.hpp>
#include <skein/dist/nccl.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace skein::sim {

/// What devices there are.
struct device_model_options {
    int devices = 1;
    std::size_t bytes_each = std::size_t{64} << 20;
    std::uint64_t seed = 1;
    int nccl_version = 22809;
    /// All ranks are tasks of one thread: who waits for what cannot come learns it at once. Else a
    /// wait that nobody ends fails after a minute.
    bool is_one_thread = false;
};

/// Bytes that work of a test reads or writes.
struct device_bytes {
    const void* at = nullptr;
    std::size_t bytes = 0;
    bool writes = false;
};

/// Devices of one machine. Any thread; tables and arithmetic made from it keep its state alive.
class device_model {
public:
    explicit device_model(device_model_options options = {});
    ~device_model();

    [[nodiscard]] dist::cuda_runtime cuda() const;
    [[nodiscard]] dist::nccl_library nccl() const;
    [[nodiscard]] std::unique_ptr<dist::device_math> math() const;

    /// A kernel: work on a stream, with all the memory that it touches.
    void launch(dist::cuda_stream on, const std::string& what, const std::vector<device_bytes>& of,
                std::function<void()> work) const;
    /// The host is about to read or write pinned memory.
    void host_touches(device_bytes of, const std::string& what) const;

    /// Communicators on the device say this from now on, and what is on them does not end.
    void fail(int device, dist::nccl_result with) const;
    /// Collectives of the device do not end any more, and nobody says so.
    void hang(int device) const;
    /// Nothing on the device runs, as when it is busy with something else, until it resumes.
    void pause(int device) const;
    void resume(int device) const;

    /// Runs one piece of work that may run. False: there is none.
    bool run_one() const;
    /// Pieces of work on all streams.
    [[nodiscard]] std::size_t pending() const;
    /// Laws that were broken, in words.
    [[nodiscard]] std::vector<std::string> complaints() const;

private:
    struct state;
    std::shared_ptr<state> state_;
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/device_model.ipp>
#include <skein/sim/detail/device_model_tables.ipp>
#endif
