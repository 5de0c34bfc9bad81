// SPDX-License-Identifier: Apache-2.0
#pragma once
// The communicator called "nccl" in the list of models (models.hpp): buffers of devices go over
// NCCL, those of the host over what automatic would take (paired_communicator.hpp).
//
// automatic never takes it: it is for ranks that have a device each. Never run on a GPU
// (docs/design/0050-cuda-and-nccl.md).
//
//     dist::add_nccl_model();                                  // once, for the program
//     run_config.communicator = "nccl";                        // DDP and FSDP on devices
//     auto comm = make_comm_thread(world, {.model = "nccl"});  // a device for each local rank

#include <skein/dist/models.hpp>
#include <skein/dist/nccl_communicator.hpp>
#include <skein/dist/paired_communicator.hpp>

#include <functional>
#include <memory>

namespace skein::dist {

/// What one rank brings to a communicator over NCCL.
struct nccl_place {
    std::shared_ptr<nccl_domain> domain; ///< of its process
    nccl_options where;                  ///< the labels are the site's
};

/// The model over what `place` gives, which every rank calls once for each communicator. What it
/// throws is told to the other ranks.
///   errors  of make: invalid_argument: two ranks on one device; mismatch: unlike versions of NCCL;
///           refused: another rank has no device; not_supported: the communicator for the host
///           compares no calls, either; those of nccl_communicator::connect and of that one
[[nodiscard]] comm_model nccl_model(std::function<nccl_place(const comm_site&)> place);

/// The same over the libraries of this machine, with the device of the local rank.
///   math    null: no averages and no halves
///   errors  already_exists: it was called before. Of the place: those of load_cuda_runtime(),
///           load_nccl() and require_device()
void add_nccl_model(std::shared_ptr<device_math> math = {});

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/nccl_model.ipp>
#endif
