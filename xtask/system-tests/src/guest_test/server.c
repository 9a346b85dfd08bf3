/*
 * A server on loopback, as small as one can be: it answers "ping N" by "pong N", and ends at
 * "stop".
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(argc > 1 ? atoi(argv[1]) : 7000),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int listening = socket(AF_INET, SOCK_STREAM, 0);
	char text[64];

	if (bind(listening, (struct sockaddr *)&address, sizeof(address)) || listen(listening, 16)) {
		perror("server");
		return 1;
	}
	for (;;) {
		int connection = accept(listening, NULL, NULL);
		ssize_t size = read(connection, text, sizeof(text) - 1);

		if (size < 4)
			return 1;
		if (!strncmp(text, "stop", 4))
			return 0;
		text[1] = 'o';
		if (write(connection, text, size) != size)
			return 1;
		close(connection);
	}
}
