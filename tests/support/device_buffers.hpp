// SPDX-License-Identifier: Apache-2.0
#pragma once
// Elements in the memory of a device, over CUDA's table: put there and read back through pinned
// memory, on a stream.

#include <skein/dist/buffer.hpp>
#include <skein/dist/cuda_runtime.hpp>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace skein::test {

/// A stream of its own, as long as it lives.
class device_stream {
public:
    explicit device_stream(const dist::cuda_runtime& cuda) : cuda_(cuda) {
        dist::cuda_check(cuda_, cuda_.stream_create(&stream_, dist::cuda_stream_non_blocking),
                         "a stream");
    }
    device_stream(const device_stream&) = delete;
    device_stream& operator=(const device_stream&) = delete;
    ~device_stream() { (void)cuda_.stream_destroy(stream_); }
    operator dist::cuda_stream() const noexcept { return stream_; }
    void synchronize() const {
        dist::cuda_check(cuda_, cuda_.stream_synchronize(stream_), "the end of a stream");
    }

private:
    const dist::cuda_runtime& cuda_;
    dist::cuda_stream stream_ = nullptr;
};

/// Elements on the thread's current device. Blocks in its constructor, read() and write().
template <class T>
class device_vector {
public:
    device_vector(const dist::cuda_runtime& cuda, dist::cuda_stream on, const std::vector<T>& from)
        : cuda_(cuda), on_(on), count_(from.size()) {
        (void)cuda_.get_device(&device_);
        dist::cuda_check(cuda_, cuda_.allocate(&data_, bytes() + 1), "memory of a test");
        dist::cuda_check(cuda_, cuda_.allocate_host(&pinned_, bytes() + 1, 0), "pinned memory");
        write(from);
    }
    device_vector(const device_vector&) = delete;
    device_vector& operator=(const device_vector&) = delete;
    ~device_vector() {
        (void)cuda_.release(data_);
        (void)cuda_.release_host(pinned_);
    }

    [[nodiscard]] std::size_t bytes() const noexcept { return count_ * sizeof(T); }
    [[nodiscard]] void* data() const noexcept { return data_; }
    [[nodiscard]] void* pinned() const noexcept { return pinned_; }
    [[nodiscard]] dist::buffer_view view() const {
        return {data_, count_, dist::dtype_of<T>(),
                dist::device::cuda(static_cast<std::uint8_t>(device_))};
    }
    void write(const std::vector<T>& from) {
        if (bytes() == 0) return;
        std::memcpy(pinned_, from.data(), bytes());
        copy(data_, pinned_, dist::cuda_copy::host_to_device);
    }
    [[nodiscard]] std::vector<T> read() {
        std::vector<T> to(count_);
        if (bytes() == 0) return to;
        copy(pinned_, data_, dist::cuda_copy::device_to_host);
        std::memcpy(to.data(), pinned_, bytes());
        return to;
    }

private:
    void copy(void* to, const void* from, dist::cuda_copy how) {
        (void)cuda_.set_device(device_);
        dist::cuda_check(cuda_, cuda_.copy_async(to, from, bytes(), how, on_), "a copy");
        dist::cuda_check(cuda_, cuda_.stream_synchronize(on_), "the end of a copy");
    }

    const dist::cuda_runtime& cuda_;
    dist::cuda_stream on_;
    std::size_t count_;
    int device_ = 0;
    void *data_ = nullptr, *pinned_ = nullptr;
};

} // namespace skein::test
