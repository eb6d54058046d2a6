  const int waiting = behind - first;
  constexpr int begin = 0;
  const int end = layers;
  if (begin < end) {
    const int tiles = (waiting + kInputs - 1) / kInputs;
    for (int tile = 0; tile < tiles; ++tile) {
      const int start = tile * kInputs;
      const int count = min(kInputs, waiting - start);
      const int chunks = (count + 7) / 8;
      {
        current = memory;
        {
          const int from = first + start;
          const Element* const mine = y + static_cast<long long>(from) * neurons;
          read_tile<kAlignedRows>(mine, neurons, width, count, chunks, team_warp, team_warps, put_input);
          for (int i = threadIdx.x; i < count; i += kThreads) control.ids[i] = from + i;
        }
        meet();
        if (begin == 0 && kAlignedRows && neurons > 0 && threadIdx.x == 0 && team_warp == 0) {
          const int following = first + start + count;
          const int some = min(kInputs, behind - following);
          if (some > 0) prefetch_l2(y + static_cast<long long>(following) * neurons, some * neurons * sizeof(Element));
        }
      }
      {
        unsigned char* const next = current.first == memory ? memory + buffer_bytes : memory;
        if (chunks <= 1) {
          current.first = all_layers<1>(current.first, next, begin, end, net, rounds, limit);
        } else if (chunks <= 2) {
          current.first = all_layers<2>(current.first, next, begin, end, net, rounds, limit);
        } else {
          current.first = all_layers<3>(current.first, next, begin, end, net, rounds, limit);
        }
      }
      write_results(current, chunks, count);
      meet();
    }
  }
(2) from (1):
@@
-4 2f5003
+  int waiting = behind - first;
+  bool is_resident = false;
+  int begin = 0;
+  for (int check = 0; begin < layers && waiting > 0; ++check) {
+    int end = layers;
+    if (kFirstCheck > 0 && check < kChecks) end = min(layers, check == 0 ? kFirstCheck : begin + (2 * begin + 2) / 3);
+    const bool is_last = end == layers;
@@
+    int alive_count = 0;
@@
-1 f05ed3
+      if (!is_resident) {
@@
-1 8e773f
+        if (begin > 0) {
+          const Element* const mine = kept + static_cast<long long>(start) * positions;
+          read_tile<true>(mine, positions, positions, count, chunks, threadIdx.x / 32, kWarps, put_kept);
+          for (int i = threadIdx.x; i < count; i += kThreads) control.ids[i] = kept_ids[start + i];
+        } else {
@@
-1 05161c
+      if (is_last) {
+        write_results(current, chunks, count);
+        is_resident = false;
+        meet();
+        continue;
+      }
+      const unsigned long long alive = agreed(alive_inputs(current, rows_after(end - 1), chunks, count, control));
+      const int alive_here = __popcll(alive);
+      for (int input = threadIdx.x / 32; input < count; input += kWarps) {
+        if (alive >> input & 1) continue;
+        const int id = control.ids[input];
+        if (threadIdx.x % 32 == 0 && team_warp < kWarps) result[id] = 0.0f;
+      }
+      if (tiles == 1 && alive_here > 8 * (chunks - 1)) {
+        is_resident = true;
+        alive_count = count;
+        continue;
+      }
+      is_resident = false;
+      int taken = 0;
+      for (unsigned long long left = alive; left; left &= left - 1, ++taken) {
+        if (taken % kWarps != static_cast<int>(threadIdx.x / 32)) continue;
+        const int input = __ffsll(static_cast<long long>(left)) - 1;
+        Element* const to = kept + static_cast<long long>(alive_count + taken) * positions;
+        #pragma unroll 8
+        for (int i = threadIdx.x % 32; i < positions; i += 32) {
+          to[i] = *reinterpret_cast<const Element*>(current.at(i, input / 8) + input % 8 * 2);
+        }
+        if (threadIdx.x % 32 == 0) kept_ids[alive_count + taken] = control.ids[input];
+      }
+      alive_count += alive_here;
@@
+    waiting = alive_count;
+    begin = end;
(3) from (1):
@@
+        } else if (chunks <= 3) {
+          current.first = all_layers<3>(current.first, next, begin, end, net, rounds, limit);
+        } else if (chunks <= 4) {
+          current.first = all_layers<4>(current.first, next, begin, end, net, rounds, limit);
@@
-1 aa3463
+          current.first = all_layers<7>(current.first, next, begin, end, net, rounds, limit);
(4) from (2):
@@
+        } else if (chunks <= 3) {
+          current.first = all_layers<3>(current.first, next, begin, end, net, rounds, limit);
+        } else if (chunks <= 4) {
+          current.first = all_layers<4>(current.first, next, begin, end, net, rounds, limit);
@@
-1 aa3463
+          current.first = all_layers<7>(current.first, next, begin, end, net, rounds, limit);
