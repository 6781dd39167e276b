/* What the tests need as small real programs, and what cannot be had from a shell:
 *
 *   helper stamp FILE WORD...            appends a line to FILE: CLOCK_BOOTTIME in ns, pid, the words
 *   helper without NR ERRNO -- COMMAND   runs COMMAND with the system call NR failing with ERRNO (seccomp(2))
 *   helper kill-at WHO N -- COMMAND      runs COMMAND and kills it (WHO is `parent`) or the process it starts (`child`)
 *                                        with SIGKILL as it enters its Nth system call that others could notice
 *                                        (ptrace(2)); at the end a line on descriptor 2:
 *                                        `kill-at: killed|launched|ended COUNT NR`
 *   helper term-at WHO N -- COMMAND      the same with SIGTERM; `outlived` if it becomes another image all the same
 *   helper killed-at N FILE -- COMMAND   becomes COMMAND, which is killed like that, but for what only waits or is heard; its number
 *                                        stays in FILE, with the one that it came to
 *   helper terminal -- COMMAND           runs COMMAND as the leader of a session on a terminal, which hangs up after it
 *   helper closed FDS -- COMMAND         runs COMMAND with these descriptors closed, such as 02
 *   helper blocked SIGNAL... -- COMMAND  runs COMMAND with these signals blocked
 *   helper ignored SIGNAL... -- COMMAND  runs COMMAND with these signals ignored
 *   helper thread FILE                   goes on as a thread that is not the first, which has ended, until there is a FILE
 *   helper clock FILE -- COMMAND         runs COMMAND, and whatever comes of it, with CLOCK_REALTIME and CLOCK_BOOTTIME
 *                                        ahead by the two numbers of seconds in FILE; ends after the last of them. On
 *                                        SIGUSR1 it reads FILE again, and timers are as after a suspend: what is due by
 *                                        the new time expires. Then it writes what it read to FILE.PID
 *
 * Signals are numbers. Built by the tests with cc, which Rust needs for linking anyway.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    exit(99);
}

static void become(char **words)
{
    if (*words && strcmp(*words, "--") == 0)
        words++;
    execvp(words[0], words);
    die(words[0]);
}

static void *until(void *file)
{
    while (access(file, F_OK))
        usleep(10000);
    _exit(0);
}

static int thread(char *file)
{
    pthread_t other;
    if (pthread_create(&other, NULL, until, file))
        die("pthread_create");
    pthread_exit(NULL);
}

static int stamp(char **words)
{
    struct timespec t;
    char line[4096];
    int fd, n;

    clock_gettime(CLOCK_BOOTTIME, &t);
    n = snprintf(line, sizeof line, "%lld %d", t.tv_sec * 1000000000LL + t.tv_nsec, getpid());
    for (char **word = words + 1; *word; word++)
        n += snprintf(line + n, sizeof line - n, " %s", *word);
    line[n++] = '\n';
    fd = open(words[0], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, n) != n)
        die(words[0]);
    return 0;
}

static void without(unsigned nr, unsigned error)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof rules / sizeof *rules, rules };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        die("seccomp");
}

/* What only the process itself notices: to be killed before or after it is the same to everybody else. Closing is, since
 * death closes everything. */
static int is_private(long nr, const unsigned long long *args)
{
    switch (nr) {
    case SYS_open:
        return !(args[1] & (O_WRONLY | O_RDWR | O_CREAT));
    case SYS_openat:
        return !(args[2] & (O_WRONLY | O_RDWR | O_CREAT));
    case SYS_read: case SYS_readv: case SYS_pread64: case SYS_close: case SYS_stat: case SYS_lstat: case SYS_fstat:
    case SYS_newfstatat: case SYS_statx: case SYS_readlink: case SYS_access: case SYS_getdents64: case SYS_lseek:
    case SYS_mmap: case SYS_munmap: case SYS_mprotect: case SYS_madvise: case SYS_brk: case SYS_fcntl: case SYS_getcwd:
    case SYS_rt_sigaction: case SYS_rt_sigprocmask: case SYS_getpid: case SYS_getppid: case SYS_getuid: case SYS_geteuid:
    case SYS_getrandom: case SYS_clock_gettime: case SYS_gettid: case SYS_uname: case SYS_arch_prctl:
    case SYS_set_tid_address: case SYS_pipe2: case SYS_dup2: case SYS_socketpair:
        return 1;
    }
    return 0;
}

/* So is waiting, and a lock that goes with the process: how often it does that depends on the others. */
static int is_patient(long nr)
{
    switch (nr) {
    case SYS_poll: case SYS_ppoll: case SYS_flock: case SYS_nanosleep: case SYS_clock_nanosleep: case SYS_timerfd_create:
    case SYS_timerfd_settime: case SYS_futex: case SYS_sched_yield:
        return 1;
    }
    return 0;
}

/* Follows COMMAND and, for `child`, what it forks, up to the latter's second exec: the first is the waiter's own. */
static int kill_at(int follow, long n, char **words, int with)
{
    pid_t first, victim;
    long count = 0, nr = -1;
    int status, execs = 0, code = 0, left = 1;
    const char *how = "ended";
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC
                 | (follow ? PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE : 0);

    first = fork();
    if (first == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        become(words);
    }
    if (waitpid(first, &status, 0) != first || ptrace(PTRACE_SETOPTIONS, first, 0, options))
        die("ptrace");
    victim = follow ? 0 : first;
    ptrace(PTRACE_SYSCALL, first, 0, 0);
    while (left > 0) {
        pid_t pid = waitpid(-1, &status, __WALL);
        int pass = 0;
        if (pid < 0)
            break;
        if (!WIFSTOPPED(status)) {
            if (pid == first)
                code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            left--;
            continue;
        }
        int event = status >> 16, sig = WSTOPSIG(status);
        if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE) {
            unsigned long child;
            ptrace(PTRACE_GETEVENTMSG, pid, 0, &child);
            /* What is started after it was killed takes its place, and is left alone; so is what a waiter starts itself. */
            if (strcmp(how, "killed") && execs == 0)
                victim = child;
            left++;
        } else if (event == PTRACE_EVENT_EXEC) {
            if (follow && pid == victim && ++execs == 2) {
                how = strcmp(how, "killed") ? "launched" : "outlived";
                ptrace(PTRACE_DETACH, pid, 0, 0);
                left--;
                continue;
            }
            if (!follow)
                count = 0;
        } else if (sig == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info info;
            if (pid == victim && ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0
                && info.op == PTRACE_SYSCALL_INFO_ENTRY && !is_private(info.entry.nr, (unsigned long long *)info.entry.args)
                && (with != SIGKILL || !is_patient(info.entry.nr))) {
                nr = info.entry.nr;
                if (++count == n) {
                    how = "killed";
                    kill(pid, with);
                    if (with == SIGKILL)
                        continue;
                }
            }
        } else if (sig != SIGSTOP && sig != SIGTRAP) {
            pass = sig;
        }
        ptrace(PTRACE_SYSCALL, pid, 0, pass);
    }
    dprintf(2, "kill-at: %s %ld %ld\n", how, count, nr);
    return code;
}

/* What a process that serves does all the time, and nobody else notices; or what it says for its log, which is longer with each start
 * that has more behind it. */
static int is_waiting(long nr, const unsigned long long *args)
{
    switch (nr) {
    case SYS_epoll_wait: case SYS_epoll_pwait: case SYS_epoll_ctl: case SYS_epoll_create1: case SYS_poll: case SYS_ppoll:
    case SYS_futex: case SYS_recvfrom: case SYS_recvmsg: case SYS_timerfd_create: case SYS_timerfd_settime: case SYS_eventfd2:
    case SYS_socket: case SYS_getsockopt: case SYS_setsockopt: case SYS_getsockname: case SYS_getpeername: case SYS_ioctl:
    case SYS_sched_yield: case SYS_sigaltstack: case SYS_set_robust_list: case SYS_rseq: case SYS_prlimit64:
    case SYS_sched_getaffinity: case SYS_prctl: case SYS_mremap: case SYS_fstatfs: case SYS_flock:
        return 1;
    case SYS_write:
        return args[0] == STDERR_FILENO;
    }
    return 0;
}

/* The child traces its parent, whose pid, descriptors and parent stay what they are. */
static void killed_at(long n, const char *file, char **words)
{
    pid_t me = getpid();
    int go[2], status, begun = 0;
    long count = 0, nr = -1;
    char text[64];

    if (pipe2(go, O_CLOEXEC))
        die("pipe");
    if (fork() > 0) {
        if (read(go[0], text, 1) != 1)
            die("the one who traces");
        become(words);
    }
    /* Nothing of the parent's may stay open in here, nor end this one with the parent. */
    for (int fd = 0; fd < 64; fd++)
        if (fd != go[1])
            close(fd);
    setsid();
    if (ptrace(PTRACE_SEIZE, me, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC) || ptrace(PTRACE_INTERRUPT, me, 0, 0))
        _exit(99);
    if (write(go[1], "", 1) != 1)
        _exit(99);
    close(go[1]);
    while (waitpid(me, &status, __WALL) == me && WIFSTOPPED(status)) {
        int event = status >> 16, sig = WSTOPSIG(status), pass = 0;
        struct __ptrace_syscall_info info;
        if (event == PTRACE_EVENT_EXEC) {
            begun = 1;
        } else if (!event && sig == (SIGTRAP | 0x80)) {
            if (begun && ptrace(PTRACE_GET_SYSCALL_INFO, me, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY
                && !is_waiting(info.entry.nr, (unsigned long long *)info.entry.args)
                && !is_private(info.entry.nr, (unsigned long long *)info.entry.args)) {
                nr = info.entry.nr;
                if (++count == n) {
                    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
                    int length = snprintf(text, sizeof text, "%ld %ld\n", count, nr);
                    if (fd < 0 || write(fd, text, length) != length)
                        _exit(99);
                    kill(me, SIGKILL);
                    continue;
                }
            }
        } else if (!event) {
            pass = sig;
        }
        ptrace(PTRACE_SYSCALL, me, 0, pass);
    }
    _exit(0);
}

/* The terminal's other end closes as we end. */
static int terminal(char **words)
{
    int status, other = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char *name;

    if (other < 0 || grantpt(other) || unlockpt(other) || !(name = ptsname(other)))
        die("posix_openpt");
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        /* The first terminal that a session leader opens becomes its own. */
        int own = open(name, O_RDWR);
        if (own < 0 || dup2(own, 0) < 0)
            die(name);
        become(words);
    }
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#ifdef __x86_64__

/* By how many seconds the clocks are ahead, and the timers that were set by them. */
static long long ahead_wall, ahead_boot;
static struct { pid_t pid; int fd; struct itimerspec at; } timers[64];
static unsigned timers_set;

static void read_ahead(const char *file)
{
    char text[64] = "", done[4096];
    int fd = open(file, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || read(fd, text, sizeof text - 1) < 0 || sscanf(text, "%lld %lld", &ahead_wall, &ahead_boot) != 2)
        die(file);
    close(fd);
    snprintf(done, sizeof done, "%s.%d", file, getpid());
    fd = open(done, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        die(done);
    close(fd);
}

static int copy(pid_t pid, void *ours, unsigned long long theirs, size_t size, int out)
{
    struct iovec here = { ours, size }, there = { (void *)theirs, size };

    return (out ? process_vm_writev : process_vm_readv)(pid, &here, 1, &there, 1, 0) == (ssize_t)size;
}

/* Without the vDSO every look at a clock is a system call. */
static void hide_vdso(pid_t pid)
{
    struct user_regs_struct regs;
    unsigned long long at, words[2] = { 1, 1 };

    if (ptrace(PTRACE_GETREGS, pid, 0, &regs) || !copy(pid, words, regs.rsp, 8, 0))
        die("registers");
    at = regs.rsp + 8 * (words[0] + 2);
    do {
        if (!copy(pid, words, at, 8, 0))
            die("environment");
        at += 8;
    } while (words[0]);
    do {
        if (!copy(pid, words, at, 16, 0))
            die("auxiliary vector");
        if (words[0] == AT_SYSINFO_EHDR) {
            words[1] = words[0] = AT_IGNORE;
            copy(pid, words, at, 16, 1);
        }
        at += 16;
    } while (words[0] != AT_NULL);
}

/* By now the kernel's timer is to expire then, on a clock that is ahead. */
static void set_real_timer(int fd, struct itimerspec at)
{
    at.it_value.tv_sec -= ahead_boot;
    if (at.it_value.tv_sec < 0)
        at.it_value = (struct timespec){ 0, 1 };
    timerfd_settime(fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static void with_their(pid_t pid, int fd, struct itimerspec at)
{
    int process = syscall(SYS_pidfd_open, pid, 0);
    int ours = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0);

    if (ours >= 0) {
        set_real_timer(ours, at);
        close(ours);
    }
    if (process >= 0)
        close(process);
}

/* In place of the system call that it is about to make: a look at a clock, or the setting of a timer. */
static void answer_clock(pid_t pid)
{
    struct user_regs_struct regs;
    struct timespec now;
    struct itimerspec at;

    if (ptrace(PTRACE_GETREGS, pid, 0, &regs))
        return;
    long nr = regs.orig_rax;
    if (nr == SYS_clock_gettime && (regs.rdi == CLOCK_REALTIME || regs.rdi == CLOCK_BOOTTIME)) {
        clock_gettime(regs.rdi, &now);
        now.tv_sec += regs.rdi == CLOCK_REALTIME ? ahead_wall : ahead_boot;
        regs.rax = copy(pid, &now, regs.rsi, sizeof now, 1) ? 0 : -EFAULT;
    } else if (nr == SYS_timerfd_settime && regs.rsi == TFD_TIMER_ABSTIME && copy(pid, &at, regs.rdx, sizeof at, 0)) {
        unsigned n = 0;
        while (n < timers_set && !(timers[n].pid == pid && timers[n].fd == (int)regs.rdi))
            n++;
        if (n == sizeof timers / sizeof *timers)
            die("timers");
        timers_set += n == timers_set;
        timers[n].pid = pid, timers[n].fd = regs.rdi, timers[n].at = at;
        if (at.it_value.tv_sec == 0 && at.it_value.tv_nsec == 0)
            return;
        with_their(pid, regs.rdi, at);
        regs.rax = 0;
    } else {
        return;
    }
    regs.orig_rax = -1;
    ptrace(PTRACE_SETREGS, pid, 0, &regs);
}

static int with_clock(const char *file, char **words)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_timerfd_settime, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof rules / sizeof *rules, rules };
    sigset_t awaited, before;
    int status, sig, code = 0;
    pid_t pid, first;

    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    sigaddset(&awaited, SIGUSR1);
    sigprocmask(SIG_BLOCK, &awaited, &before);
    read_ahead(file);
    first = fork();
    if (first == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        raise(SIGSTOP);
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
            die("seccomp");
        become(words);
    }
    if (waitpid(first, &status, WUNTRACED) != first
        || ptrace(PTRACE_SEIZE, first, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC
                                          | PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL))
        die("ptrace");
    kill(first, SIGCONT);
    for (;;) {
        while ((pid = waitpid(-1, &status, __WALL | WNOHANG)) > 0) {
            int event = status >> 16, pass = 0;
            if (!WIFSTOPPED(status)) {
                if (pid == first)
                    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                continue;
            }
            if (event == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP) {
                ptrace(PTRACE_LISTEN, pid, 0, 0);
                continue;
            }
            if (event == PTRACE_EVENT_EXEC)
                hide_vdso(pid);
            else if (event == PTRACE_EVENT_SECCOMP)
                answer_clock(pid);
            else if (event == 0)
                pass = WSTOPSIG(status);
            ptrace(PTRACE_CONT, pid, 0, pass);
        }
        if (pid < 0)
            return code;
        sigwait(&awaited, &sig);
        if (sig == SIGUSR1) {
            read_ahead(file);
            for (unsigned n = 0; n < timers_set; n++)
                if (timers[n].at.it_value.tv_sec || timers[n].at.it_value.tv_nsec)
                    with_their(timers[n].pid, timers[n].fd, timers[n].at);
        }
    }
}

#else

static int with_clock(const char *file, char **words)
{
    (void)words;
    fprintf(stderr, "helper: no clock of its own for %s on this architecture\n", file);
    return 99;
}

#endif

int main(int argc, char **argv)
{
    char **word = argv + 2;
    char *mode = argc > 2 ? argv[1] : "";

    if (strcmp(mode, "stamp") == 0)
        return stamp(word);
    if (strcmp(mode, "without") == 0 && argc > 4) {
        without(atoi(word[0]), atoi(word[1]));
        become(word + 2);
    }
    if (strcmp(mode, "thread") == 0)
        return thread(word[0]);
    if (strcmp(mode, "terminal") == 0)
        return terminal(word);
    if (strcmp(mode, "kill-at") == 0 && argc > 4)
        return kill_at(strcmp(word[0], "child") == 0, atol(word[1]), word + 2, SIGKILL);
    if (strcmp(mode, "term-at") == 0 && argc > 4)
        return kill_at(strcmp(word[0], "child") == 0, atol(word[1]), word + 2, SIGTERM);
    if (strcmp(mode, "killed-at") == 0 && argc > 4)
        killed_at(atol(word[0]), word[1], word + 2);
    if (strcmp(mode, "clock") == 0 && argc > 3)
        return with_clock(word[0], word + 1);
    if (strcmp(mode, "closed") == 0) {
        for (char *fd = word[0]; *fd; fd++)
            close(*fd - '0');
        become(word + 1);
    }
    if (strcmp(mode, "blocked") == 0 || strcmp(mode, "ignored") == 0) {
        /* By the bare system calls: the C library keeps some real-time signals to itself. */
        unsigned long set = 0;
        for (; *word && strcmp(*word, "--") != 0; word++) {
            int sig = atoi(*word);
            set |= 1UL << (sig - 1);
            if (*mode == 'i') {
                struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action
                    = { SIG_IGN, 0, 0, 0 };
                if (syscall(SYS_rt_sigaction, sig, &action, 0, 8))
                    die("rt_sigaction");
            }
        }
        if (*mode == 'b' && syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, 0, 8))
            die("rt_sigprocmask");
        become(word);
    }
    fprintf(stderr, "helper: what?\n");
    return 99;
}
