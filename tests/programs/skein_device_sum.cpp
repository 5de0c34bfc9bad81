// SPDX-License-Identifier: Apache-2.0
// skein_device_sum: a sum over NCCL on a device of this machine, or what is missing for it.
//
//   skein_device_sum [--cudart NAME] [--nccl NAME] [--device N]
//
// NAME is a library as dlopen takes it, instead of those that are looked for. Prints where each
// library came from, its version, and the sum of one rank. Exits with 2, and one line that says
// what is missing and what to do, when there is no such device.
#include <skein/dist/nccl_communicator.hpp>
#include <skein/net/real_loop.hpp>

#include "support/device_buffers.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace {

using namespace skein;
using namespace skein::dist;

struct wanted {
    std::vector<std::string> cudart = cuda_runtime_names(), nccl = nccl_names();
    int device = 0;
};

void sum(const wanted& what) {
    auto cuda = load_cuda_runtime(what.cudart).value();
    int version = 0;
    cuda_check(cuda, cuda.runtime_version(&version), "a version");
    fmt::print("cuda {} of {}\n", version, cuda.source);
    std::fflush(stdout);
    auto nccl = load_nccl(what.nccl).value();
    fmt::print("nccl {} of {}\n", nccl_version_text(nccl.version_number), nccl.source);
    std::fflush(stdout);
    require_device(cuda, what.device);

    const auto domain = std::make_shared<nccl_domain>(cuda, nccl);
    nccl_unique_id id{};
    nccl_check(nccl, nccl.unique_id(&id), "an id");
    net::real_loop loop;
    nccl_options where;
    where.device = what.device;
    auto comm = loop.run(nccl_communicator::connect(domain, id, 0, 1, where));
    {
        test::device_vector<float> io(cuda, nullptr, {1.0f, 2.0f, 39.0f});
        loop.run(comm->all_reduce(io.view(), reduce_op::sum));
        const auto got = io.read();
        fmt::print("sum {} {} {}\n", got[0], got[1], got[2]);
    }
    loop.run(comm->close());
}

} // namespace

int main(int argc, char** argv) {
    wanted what;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string_view option = argv[i];
        if (option == "--cudart") what.cudart = {argv[i + 1]};
        if (option == "--nccl") what.nccl = {argv[i + 1]};
        if (option == "--device") what.device = std::atoi(argv[i + 1]);
    }
    try {
        sum(what);
        return 0;
    } catch (const error& why) {
        fmt::print(stderr, "error: {}\n", why.what());
        return 2;
    }
}
