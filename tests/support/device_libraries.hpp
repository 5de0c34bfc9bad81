// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real libraries of devices, where a test can have them: else the reason why it is skipped.

#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/nccl.hpp>

#include <optional>
#include <string>

namespace skein::test {

/// CUDA and NCCL of this machine with its devices; why_not says what is missing.
struct real_devices {
    std::optional<dist::cuda_runtime> cuda;
    std::optional<dist::nccl_library> nccl;
    int count = 0;
    std::string why_not; ///< empty: there is a device

    static real_devices look() {
        real_devices found;
        if (auto cuda = dist::load_cuda_runtime()) {
            found.cuda = *cuda;
            const auto count = dist::cuda_devices(*cuda);
            if (count) found.count = *count;
            if (!count) found.why_not = count.error().what();
        } else {
            found.why_not = cuda.error().what();
        }
        if (auto nccl = dist::load_nccl())
            found.nccl = *nccl;
        else if (found.why_not.empty())
            found.why_not = nccl.error().what();
        return found;
    }
};

} // namespace skein::test
