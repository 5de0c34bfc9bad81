// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device of CUDA that is none: its memory is of pages that this process may not read, so that
// whoever takes a device's address for the host's is ended at once.
//
//     if (!hidden_device::make()) return 77;   // this LibTorch has devices of its own
//     net->to(hidden_device::device);
//     config.communicator = "hidden";          // host_communicator over that memory
//
// LibTorch's operators for CUDA are those of the CPU over the same memory at another address; CUDA's
// table copies between the two. It is test equipment, says nothing of speed, streams or kernels, and
// needs a LibTorch without its CUDA half. For one file of a program.
#include <skein/dist/host_communicator.hpp>
#include <skein/train.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace hidden_device {

using namespace skein;

/// Memory at two addresses: one that nobody may touch, and one for what stands for kernels.
class hidden_memory {
public:
    static hidden_memory& instance() {
        static hidden_memory all;
        return all;
    }
    void* allocate(std::size_t bytes) {
        const std::size_t size = (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096;
        const int file = ::memfd_create("hidden-device", 0);
        if (file < 0 || ::ftruncate(file, static_cast<off_t>(size)) != 0) std::abort();
        void* const seen = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        void* const hidden = ::mmap(nullptr, size, PROT_NONE, MAP_SHARED, file, 0);
        ::close(file);
        if (seen == MAP_FAILED || hidden == MAP_FAILED) std::abort();
        const std::lock_guard lock(guard_);
        blocks_[static_cast<std::byte*>(hidden)] = {static_cast<std::byte*>(seen), size};
        return hidden;
    }
    void release(void* hidden) {
        const std::lock_guard lock(guard_);
        const auto at = blocks_.find(static_cast<std::byte*>(hidden));
        if (at == blocks_.end()) return;
        ::munmap(at->second.seen, at->second.size);
        ::munmap(hidden, at->second.size);
        blocks_.erase(at);
    }
    /// Where it can be read; an address that is not hidden is its own.
    [[nodiscard]] void* seen(const void* at) {
        auto* const place = static_cast<std::byte*>(const_cast<void*>(at));
        const std::lock_guard lock(guard_);
        auto block = blocks_.upper_bound(place);
        if (block == blocks_.begin()) return place;
        --block;
        const auto offset = static_cast<std::size_t>(place - block->first);
        return offset < block->second.size ? block->second.seen + offset : place;
    }

private:
    struct mapping {
        std::byte* seen;
        std::size_t size;
    };
    std::mutex guard_;
    std::map<std::byte*, mapping> blocks_;
};

inline const c10::Device device(c10::kCUDA, 0);

struct hidden_allocator final : c10::Allocator {
    c10::DataPtr allocate(std::size_t n) override {
        void* const at = n == 0 ? nullptr : hidden_memory::instance().allocate(n);
        return {at, at, [](void* p) { hidden_memory::instance().release(p); }, device};
    }
    void copy_data(void* to, const void* from, std::size_t n) const override {
        auto& memory = hidden_memory::instance();
        std::memcpy(memory.seen(to), memory.seen(from), n);
    }
};
inline hidden_allocator allocator;

struct one_device final : c10::impl::NoOpDeviceGuardImpl<c10::kCUDA> {
    [[nodiscard]] c10::Device exchangeDevice(c10::Device) const override { return device; }
    [[nodiscard]] c10::Device getDevice() const override { return device; }
    [[nodiscard]] c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
    [[nodiscard]] c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
    [[nodiscard]] c10::Stream exchangeStream(c10::Stream) const noexcept override {
        return stream();
    }
    static c10::Stream stream() noexcept { return c10::Stream(c10::Stream::DEFAULT, device); }
};

/// LibTorch has CUDA, says this; its random numbers are the CPU's.
struct hidden_hooks final : at::CUDAHooksInterface {
    explicit hidden_hooks(at::CUDAHooksArgs) {}
    [[nodiscard]] bool hasCUDA() const override { return true; }
    [[nodiscard]] bool isBuilt() const override { return true; }
    [[nodiscard]] bool isAvailable() const override { return true; }
    [[nodiscard]] bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    [[nodiscard]] c10::DeviceIndex deviceCount() const override { return 1; }
    void init() const override {}
    [[nodiscard]] const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
        return at::detail::getDefaultCPUGenerator();
    }
};

inline bool is_hidden(const at::Tensor& t) { return t.defined() && t.device().is_cuda(); }

/// The same elements for the CPU, of a storage as large.
inline at::Tensor on_cpu(const at::Tensor& t) {
    if (!is_hidden(t)) return t;
    const auto& storage = t.storage();
    void* const at =
        storage.nbytes() == 0 ? nullptr : hidden_memory::instance().seen(storage.data());
    const auto count = static_cast<std::int64_t>(storage.nbytes() / t.element_size());
    const auto all = at::from_blob(at, {count}, at::TensorOptions().dtype(t.dtype()));
    return all.as_strided(t.sizes(), t.strides(), t.storage_offset());
}

inline at::Tensor of_storage(c10::Storage storage, const at::Tensor& like, std::int64_t offset,
                             at::IntArrayRef strides) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), strides, offset);
    return made;
}

inline at::Tensor on_device(const at::Tensor& result) {
    if (!result.defined()) return result;
    const bool dense = result.is_non_overlapping_and_dense();
    const auto whole = dense ? result : result.contiguous();
    c10::Storage storage(c10::Storage::use_byte_size_t(), whole.nbytes(),
                         allocator.allocate(whole.nbytes()), &allocator, true);
    if (whole.nbytes() > 0)
        std::memcpy(hidden_memory::instance().seen(storage.data()), whole.const_data_ptr(),
                    whole.nbytes());
    return of_storage(std::move(storage), whole, 0, whole.strides());
}

/// Of a result whose size an operator learns late.
inline const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                                std::optional<at::MemoryFormat> /*format*/) {
    auto* const impl = self.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
    const auto bytes =
        static_cast<std::size_t>(self.storage_offset() + self.numel()) * self.element_size();
    const auto storage = self.storage();
    if (storage.nbytes() >= bytes) return self;
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(allocator.allocate(bytes));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    return self;
}

/// `out`, which the operator may size.
inline bool is_result(const c10::Argument& of) {
    return of.kwarg_only() && of.alias_info() != nullptr && of.alias_info()->isWrite();
}

/// An operator on the device: that of the CPU. What it returns is an argument, a view of one, or new.
inline void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto count = schema.arguments().size();
    auto arguments = torch::jit::last(*stack, count);
    const std::vector<c10::IValue> given(arguments.begin(), arguments.end());
    torch::jit::drop(*stack, count);
    std::vector<at::Tensor> seen(count);
    bool to_cpu = false;
    for (std::size_t i = 0; i < count; ++i) {
        const auto& value = given[i];
        if (value.isTensor() && is_result(schema.arguments()[i])) {
            seen[i] = at::empty({0}, value.toTensor().options().device(c10::kCPU));
            stack->emplace_back(seen[i]);
        } else if (value.isTensor()) {
            seen[i] = on_cpu(value.toTensor());
            stack->emplace_back(seen[i]);
        } else if (value.isTensorList()) {
            std::vector<at::Tensor> list;
            for (const at::Tensor& each : value.toTensorVector()) list.push_back(on_cpu(each));
            stack->emplace_back(std::move(list));
        } else if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> list;
            for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector())
                list.push_back(each ? std::optional(on_cpu(*each)) : std::nullopt);
            stack->emplace_back(std::move(list));
        } else if (value.isDevice()) {
            to_cpu = to_cpu || value.toDevice().is_cpu();
            stack->emplace_back(c10::Device(c10::kCPU));
        } else {
            stack->push_back(value);
        }
    }
    op.callBoxed(stack);
    for (std::size_t i = 0; i < count; ++i) {
        if (!given[i].isTensor() || !is_result(schema.arguments()[i])) continue;
        const auto& to = given[i].toTensor();
        if (to.sizes() != seen[i].sizes()) (void)resize(to, seen[i].sym_sizes(), {});
        on_cpu(to).copy_(seen[i]);
    }
    const auto returned = schema.returns().size();
    auto results = torch::jit::pop(*stack, returned);
    for (std::size_t r = 0; r < returned; ++r) {
        const auto* const alias = schema.returns()[r].alias_info();
        std::size_t source = count;
        for (std::size_t i = 0; alias != nullptr && i < count; ++i) {
            const auto* const of = schema.arguments()[i].alias_info();
            if (of != nullptr && given[i].isTensor() && of->beforeSets() == alias->beforeSets())
                source = i;
        }
        const auto& result = results[r];
        if (source < count && alias->isWrite()) {
            stack->push_back(given[source]);
        } else if (source < count && is_hidden(given[source].toTensor())) {
            const auto& view = result.toTensor();
            const auto& of = given[source].toTensor();
            const auto moved = static_cast<const std::byte*>(view.const_data_ptr()) -
                               static_cast<const std::byte*>(seen[source].const_data_ptr());
            const auto size = static_cast<std::int64_t>(of.element_size());
            stack->emplace_back(of_storage(
                of.storage(), view, of.storage_offset() + (view.numel() == 0 ? 0 : moved / size),
                view.strides()));
        } else if (result.isTensor() && !to_cpu) {
            stack->emplace_back(on_device(result.toTensor()));
        } else if (result.isTensorList()) {
            std::vector<at::Tensor> list;
            for (const at::Tensor& each : result.toTensorVector()) list.push_back(on_device(each));
            stack->emplace_back(std::move(list));
        } else {
            stack->push_back(result);
        }
    }
}

/// CUDA's table over that memory: all is done when it returns.
inline dist::cuda_runtime hidden_runtime() {
    using result = dist::cuda_result;
    dist::cuda_runtime cuda;
    cuda.source = "a hidden device";
    cuda.device_count = [](int* to) { return *to = 1, result::success; };
    cuda.set_device = [](int) { return result::success; };
    cuda.last_error = [] { return result::success; };
    cuda.error_text = [](result) { return "a hidden device's error"; };
    cuda.allocate_host = [](void** to, std::size_t bytes, unsigned) {
        *to = std::malloc(bytes);
        return result::success;
    };
    cuda.release_host = [](void* at) { return std::free(at), result::success; };
    cuda.copy_async = [](void* to, const void* from, std::size_t bytes, dist::cuda_copy how,
                         dist::cuda_stream) {
        auto& memory = hidden_memory::instance();
        const bool to_host = how == dist::cuda_copy::device_to_host;
        std::memcpy(to_host ? to : memory.seen(to), to_host ? memory.seen(from) : from, bytes);
        return result::success;
    };
    static int token = 0;
    cuda.stream_create = [](dist::cuda_stream* to, unsigned) {
        return *to = reinterpret_cast<dist::cuda_stream>(&token), result::success;
    };
    cuda.event_create = [](dist::cuda_event* to, unsigned) {
        return *to = reinterpret_cast<dist::cuda_event>(&token), result::success;
    };
    cuda.stream_destroy = cuda.stream_query =
        cuda.stream_synchronize = [](dist::cuda_stream) { return result::success; };
    cuda.event_destroy = cuda.event_query =
        cuda.event_synchronize = [](dist::cuda_event) { return result::success; };
    cuda.event_record = [](dist::cuda_event, dist::cuda_stream) { return result::success; };
    cuda.stream_wait_event = [](dist::cuda_stream, dist::cuda_event, unsigned) {
        return result::success;
    };
    return cuda;
}

/// Once, before LibTorch is asked for a device.
///   result  false: this LibTorch has devices of its own
inline bool make() {
    if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return false; // asked before it looks for hooks

    c10::SetAllocator(c10::kCUDA, &allocator);
    at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs args) {
        return std::unique_ptr<at::CUDAHooksInterface>(new hidden_hooks(args));
    });
    static const c10::impl::DeviceGuardImplRegistrar guard(c10::kCUDA, new one_device);
    static torch::Library operators(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__,
                                    __LINE__);
    operators.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    // Those with one body for all devices, which asks for a kernel of its own.
    static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__,
                               __LINE__);
    aten.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    aten.impl("resize_", &resize);
    dist::add_comm_model(
        {"hidden",
         [](const dist::comm_site& site) {
             return site.options.model == "automatic" ? dist::comm_fit{0, "it is for a test"}
                                                      : dist::comm_fit{};
         },
         [](const dist::comm_site& site) {
             auto options = site.options;
             options.model = "automatic";
             const dist::comm_site of{site.world, options,          site.worker,
                                      site.where, site.one_network, site.key};
             return std::make_unique<dist::host_communicator>(dist::choose_comm_model(of).make(of),
                                                              hidden_runtime, site.options.limits);
         }});
    return true;
}

} // namespace hidden_device
