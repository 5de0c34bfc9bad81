// SPDX-License-Identifier: Apache-2.0
// MPI_Allreduce of two processes, for bench/allreduce.cpp, which compiles and starts it.
//
//     mpirun -n 2 allreduce_mpi BYTES TIMES      prints the seconds of one call, float sum in place
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    if (argc != 3) return 2;
    const size_t bytes = strtoul(argv[1], NULL, 10);
    const int times = atoi(argv[2]), count = (int)(bytes / sizeof(float));
    float* const data = calloc(bytes, 1);
    for (int i = 0; i < count; ++i) data[i] = 0; // pages that are there
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double seconds = 0;
    for (int round = 0; round < 2; ++round) { // the first one warms up
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        for (int i = 0; i < times; ++i)
            MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds = (MPI_Wtime() - begin) / times;
    }
    if (rank == 0) printf("%.9f\n", seconds);
    free(data);
    MPI_Finalize();
    return 0;
}
